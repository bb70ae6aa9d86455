#!/usr/bin/env bash
# What people do with jobs beside running them: names, times, going on from a checkpoint of one's own, and what a
# command says of a job that has ended or never was.
#   tests/e2e/commands.sh
source "$(dirname "$0")/cluster.sh"
cluster_begin
start_broker
start_peer one --device cpu:1
start_peer two --device cpu:1
take_model two_heads
job=$work/job.yaml
json() { "$weft" "$@" --format json; }

# A file of the command line is looked for where the user is, all of them alike.
mkdir "$work/away"
cp "$work/data.npz" "$work/away/there.npz"
program=$(realpath "$weft")
(cd "$work/away" && "$program" local "$job" --set data.train.path=there.npz --set steps=1 --set output=here.onnx >"$work/away.log") ||
  fail "paths of --set are not those of the current folder"
[ -e "$work/away/here.onnx" ] || fail "output= of --set is not in the current folder"

# Beside the output stand the curves, each step once, also of a run that goes on; and TensorBoard reads them.
"$weft" local "$job" --set steps=12 --set evaluate_every=4 --set checkpoint.steps=5 --set "output=$work/curves.onnx" --tensorboard "$work/tb" >"$work/curves.log"
rm "$work"/curves.onnx.checkpoints/checkpoint-10.json
"$weft" local "$job" --set steps=12 --set evaluate_every=4 --set "output=$work/curves.onnx" --resume auto >>"$work/curves.log" 2>&1
[ "$(cut -d, -f1 "$work/curves.metrics.csv" | tr '\n' ' ')" = "step 1 2 3 4 5 6 7 8 9 10 11 12 " ] || fail "the steps of the curves: $(cut -d, -f1 "$work/curves.metrics.csv" | tr '\n' ' ')"
[ "$(awk -F, 'NR > 1 && $9 != "" { printf "%s ", $1 }' "$work/curves.metrics.csv")" = "4 8 12 " ] || fail "evaluations in the curves"
if /usr/bin/python3 -c '' 2>/dev/null; then
  # Of the first run alone: the second had no --tensorboard.
  /usr/bin/python3 tests/e2e/read_event_file.py "$work"/tb/events.out.tfevents.* >"$work/scalars" || fail "the event file of TensorBoard"
  awk '$2 == "train/loss" { print $1, $3 }' "$work/scalars" >"$work/scalars.loss"
  awk -F, 'NR > 1 { printf "%s %.6g\n", $1, $3 }' "$work/curves.metrics.csv" >"$work/curves.loss"
  paste -d' ' "$work/scalars.loss" "$work/curves.loss" | awk '{ if ($1 != $3 || ($2 - $4) ^ 2 > 1e-10 * $4 ^ 2) bad = 1 } END { exit bad || NR != 12 }' || fail "TensorBoard's losses are not those of the table"
else
  echo "skipped: TensorBoard's event file is not read back: there is no python3"
fi

# A run that one machine began goes on on two: the same bytes as if it had stayed.
"$weft" local "$job" --set steps=20 --set checkpoint.steps=10 --set "output=$work/local.onnx" >"$work/local.log"
cp -r "$work/local.onnx.checkpoints" "$work/half"
rm "$work/half/checkpoint-20.json"
submit_job "$job" --set steps=20 --set placement.stages=2 --set "output=$work/out.onnx" --resume "$work/half" --name "two heads"
finish_job
same_file "begun on one machine, ended on two" "$work/local.onnx" "$work/out.onnx"
first=$(grep '"event":"step"' "$work/events" | head -n 1 | field step)
[ "$first" = 11 ] || fail "the first step is $first, not 11"

# Every line has its time, and the job's number.
bad=$(grep -vE '^\{"event":"[a-z_]+","time":"20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\.[0-9]{3}Z","job":1[,}]' "$work/events" || true)
[ -z "$bad" ] || fail "events without time or job: $bad"
"$weft" jobs | grep -qE '^ +1 +finished +20/20 .* 20[0-9]{2}-[0-9-]{5} [0-9:]{8} .* two heads' || fail "weft jobs: $("$weft" jobs)"
"$weft" logs 1 | grep -qvE '^20[0-9]{2}-[0-9-]{5} [0-9:]{8}  ' && fail "a line of the log has no time"
"$weft" status 1 | grep -q '^evaluation after step 20:  accuracy' || fail "the status does not tell the evaluation from the step"

# refused CODE WORDS COMMAND...: it fails so, with those words, and says the same in JSON.
refused() {
  local code=$1 words=$2 status=0 said
  shift 2
  said=$("$weft" "$@" 2>&1 >/dev/null) || status=$?
  [ "$status" = "$code" ] || fail "weft $* ended with $status, not $code: $said"
  grep -qF "$words" <<<"$said" || fail "weft $* does not say '$words': $said"
  said=$(json "$@" 2>/dev/null | tail -n 1) || true
  grep -qE '^\{"event":"error","time":"[^"]*","code":"[A-Za-z]+","exit_code":'"$code"',' <<<"$said" || fail "weft $* in JSON: $said"
}
refused 2 "is after step 10, the job's last" submit "$job" --set steps=10 --set "output=$work/x.onnx" --resume "$work/half"
refused 2 'holds no m of' submit "$job" --set 'optimizer={type: adam, learning_rate: 0.1}' --set "output=$work/x.onnx" --resume "$work/half"
refused 3 'no job 9 of yours' status 9
refused 3 'no job 9 of yours' stop 9
refused 3 'no job 9 of yours' fetch 9 -o "$work/x.onnx"
refused 2 'is finished' resume 1
"$weft" stop 1 | grep -q 'has ended already: it is finished' || fail "weft stop of an ended job"
"$weft" fetch 1 -o "$work/again.onnx" | grep -q 'the weights after step 20' || fail "weft fetch"
same_file "fetched again" "$work/out.onnx" "$work/again.onnx"

# Help, near words, and what is explained where one works.
"$weft" help optimizer.betas | grep -qF 'optimizer: {type: adamw, betas: [0.9, 0.99]}' || fail "weft help of a key"
"$weft" help token create | grep -qF -- '--role' || fail "weft help of a command"
refused 3 'did you mean optimizer?' help optmizer
refused 2 'did you mean `weft submit`?' sumbit "$job"
refused 2 '`weft local JOB` trains on this machine' train "$job"
refused 2 'did you mean --detach?' submit "$job" --detahc

# The jobs belong to a key, which may go along to another machine; another key sees none of them.
elsewhere() { XDG_CONFIG_HOME=$work/elsewhere "$weft" "$@"; }
[ -z "$(elsewhere jobs | tail -n +2)" ] || fail "another key sees jobs"
"$weft" login --save-identity "$work/me.pem" 2>>"$work/login.log"
elsewhere login "$WEFT_BROKER" --token "$WEFT_TOKEN" --identity "$work/me.pem" >>"$work/login.log" 2>&1 || fail "weft login --identity"
elsewhere jobs | grep -q 'two heads' || fail "the same key elsewhere does not see its jobs"
[ "$(stat -c %a "$work/me.pem")" = 600 ] || fail "others may read the key"
refused 2 'is there already' login --save-identity "$work/me.pem"
elsewhere logout | grep -q '^forgot ' || fail "weft logout"
refused 3 'no login is kept' logout

# An ended job goes when its user says so, and its number with it.
"$weft" status 1 -w | head -n 1 | grep -q 'two heads' || fail "weft status -w of an ended job"
"$weft" rm 1 | grep -q 'job 1 is forgotten' || fail "weft rm"
refused 3 'no job 1 of yours' status 1
refused 3 'no job 1 of yours' rm 1
[ "$("$weft" submit "$job" --set steps=1 --detach 2>>"$work/submit.log")" = 2 ] || fail "the number of a job that was removed is given again"

# Who follows a job from before it is planned is told how many steps there are once that is known.
"$weft" logs -f 2 >"$work/second.log"
lose_peer one
lose_peer two
third=$("$weft" submit "$job" --set steps=30 --detach 2>>"$work/submit.log")
"$weft" logs -f "$third" >"$work/third.log" &
follower=$!
wait_for_log "$work/third.log" 'waits for peers'
start_peer again --device cpu:1
wait "$follower" || fail "weft logs -f: $(cat "$work/third.log")"
grep -q 'step 30/30' "$work/third.log" || fail "weft logs -f does not show the last step"
! grep -q '/0' "$work/third.log" || fail "weft logs -f shows steps of none: $(grep '/0' "$work/third.log")"

# Who is sent away with a token that is revoked is told so, as who revokes it was.
id=$("$weft" token list --data-dir "$work/broker" --format json | grep '"role":"submitter"' | head -n 1 | field id)
"$weft" token revoke "$id" --data-dir "$work/broker" | grep -q 'who was admitted by it is sent away' || fail "weft token revoke"
wait_for_log "$work/broker.log" key_revoked
said=$("$weft" jobs 2>&1 >/dev/null) || true
grep -q 'has been revoked' <<<"$said" || fail "after its token was revoked: $said"
echo "ok: commands"
