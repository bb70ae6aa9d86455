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
(cd "$work/away" && "$OLDPWD/$weft" local "$job" --set data.train.path=there.npz --set steps=1 --set output=here.onnx >"$work/away.log") ||
  fail "paths of --set are not those of the current folder"
[ -e "$work/away/here.onnx" ] || fail "output= of --set is not in the current folder"

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
echo "ok: commands"
