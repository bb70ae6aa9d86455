#!/usr/bin/env bash
# How commands end, with real processes: what follows a job ends as the job did, a terminal that goes away (SIGHUP) ends
# nothing that is not kept, nor does a reader that goes, a trained file that cannot be written stays with the broker, and
# who waits for the last checkpoint over slow lines sees how much of it is saved.
#   endings.sh [--quick]
source "$(dirname "$0")/cluster.sh"
cluster_begin
take_model gpt3
job=$work/job.yaml
peer() { start_peer "$1" --device cpu:1 --listen 127.0.0.1:0 "${@:2}"; }
ends_with() {  # ends_with CODE COMMAND...: its standard output and error are SAID
  local expected=$1 code=0; shift
  SAID=$("$@" 2>&1) || code=$?
  [ "$code" = "$expected" ] || fail "$* ended with $code, not $expected: $SAID"
}
says() { [[ $SAID == *"$1"* ]] || fail "it does not say '$1': $SAID"; }

start_broker
peer a
peer b

# A job that failed.
ends_with 7 "$weft" submit "$job" --set optimizer.learning_rate=1e30 --set placement.stages=1 --format json
failed=$("$weft" jobs --format json | tail -n 1 | field job)
ends_with 7 "$weft" logs -f "$failed"
ends_with 0 "$weft" logs "$failed"
ends_with 0 "$weft" stop "$failed"
says "has ended already: it is failed"
echo "ok: a job that diverged: submit and logs -f end with 7, stop says that it has ended"

# One that runs: whoever follows it may go, by a hangup or because nobody reads.
submit_job "$job" --set schedule=null --set steps=1000000 --set placement.stages=1
wait_for_step 5
read_one_line() { timeout $((60 * slower)) "$weft" logs -f "$job_number" --format json | head -n 1; }
ends_with 0 read_one_line
"$weft" logs -f "$job_number" >"$work/logs.out" 2>&1 &
follower=$!
wait_for_log "$work/logs.out" "step"
kill -HUP "$follower"
code=0; wait "$follower" || code=$?
[ "$code" = 130 ] || fail "logs -f ended with $code after a hangup"
kill -HUP "$submit_pid"
code=0; wait "$submit_pid" || code=$?
[ "$code" = 130 ] || fail "submit ended with $code after a hangup"
[ "$(job_state)" = running ] || fail "the job is $(job_state) after its submitter's hangup"
echo "ok: logs ends when nobody reads, logs and submit leave at a hangup, and the job goes on"

# The peer that has it hands it over at a hangup.
worker=$(one_of $(active_peers))
kill -HUP "${peer_pid[$worker]}"; kill -HUP "${peer_pid[$worker]}" 2>/dev/null || true
wait "${peer_pid[$worker]}" || fail "$worker did not leave with 0 at a hangup but $?"
unset "peer_pid[$worker]"
moved=$(timeout $((120 * slower)) "$weft" logs -f "$job_number" --format json |
  awk '/wants to leave/ { asked = 1 } asked && /"state":"running"/ { print "moved"; exit }') || fail "logs: $?"
[ "$moved" = moved ] || fail "the job did not move when $worker left"
"$weft" logs -f "$job_number" >"$work/logs.out" 2>&1 &
follower=$!
"$weft" stop "$job_number" >/dev/null
code=0; wait "$follower" || code=$?
[ "$code" = 130 ] || fail "logs -f of a job that was stopped ended with $code"
ends_with 0 "$weft" stop "$job_number"
says "has ended already: it is stopped"
ends_with 0 "$weft" fetch "$job_number" -o "$work/fetched.onnx"
echo "ok: a peer handed its work over at a hangup; a stopped job ends what follows it with 130"

# A peer, and a submitter, whose outputs nobody reads any more.
mkfifo "$work/unread"
"$weft" join "$BROKER" --token "$PEER_TOKEN" --name c --data-dir "$work/peer-c" --device cpu:1 --listen 127.0.0.1:0 \
  >"$work/unread" 2>&1 &
peer_pid[c]=$!
head -c 1 "$work/unread" >/dev/null
submit_unread() { "$weft" submit "$job" --set placement.stages=2 --set "output=$work/unread.onnx" --set steps=40 2>&1 | head -n 1; }
ends_with 0 submit_unread
[ -s "$work/unread.onnx" ] || fail "a submitter that nobody read did not write its file"
kill -0 "${peer_pid[c]}" || fail "a peer that nobody reads has ended"
echo "ok: a peer and a submitter that nobody reads go on"

# The output becomes a folder while the job runs.
submit_job "$job" --set placement.stages=1 --set steps=200 --set "output=$work/taken.onnx"
wait_for_step 2
mkdir -p "$work/taken.onnx/full"
code=0; wait "$submit_pid" || code=$?
[ "$code" != 0 ] || fail "submit ended well although its file could not be written"
grep -q "weft fetch $job_number -o FILE" "$work/submit.log" || fail "submit does not say how to fetch the file"
ends_with 0 "$weft" fetch "$job_number" -o "$work/late.onnx"
"$weft" local "$job" --set steps=200 --threads 1 --set "output=$work/local.onnx" --format json >/dev/null
same_file "fetched after submit could not write it" "$work/local.onnx" "$work/late.onnx"
ends_with 2 "$weft" fetch "$job_number" -o "$work/taken.onnx"
says "is a folder"

# Stopped while it waits, for all its peers are paused: what it learnt is a checkpoint all the same.
submit_job "$job" --set schedule=null --set steps=1000000 --set placement.stages=1 --set checkpoint.every=1h
wait_for_step 20
"$weft" pause >/dev/null
wait_for_event "paused after step"
"$weft" stop "$job_number" >/dev/null
finish_job
[ "$RESULT" = stopped ] || fail "the job ended otherwise: $LINE"
steps=$(field steps <<<"$LINE")
[ "$steps" -ge 20 ] || fail "of 20 steps or more it has kept $steps: $LINE"
ends_with 0 "$weft" fetch "$job_number" -o "$work/alone.onnx"
"$weft" local "$job" --set schedule=null --set "steps=$steps" --threads 1 --set "output=$work/local.onnx" --format json >/dev/null
same_file "stopped while nobody worked on it, $steps steps" "$work/local.onnx" "$work/alone.onnx"
ends_with 0 "$weft" resume "$job_number"
says "goes on from the checkpoint of step $steps"
ends_with 0 "$weft" stop "$job_number"
says "stopped by its user after step $steps"

# Two stages of 16 MB of state each, over 8 Mbit/s each: what is saved is told, and grows.
for name in "${!peer_pid[@]}"; do lose_peer "$name"; done
made_model_job <<YAML
data:
  train: {type: text, path: corpus.txt, sequence_length: 16, validation: 0}
steps: 1
YAML
"${WEFT_BENCH_MODEL:-build/release/weft_bench_model}" 1024 2 16 "$work/model.onnx"
for name in slow1 slow2; do peer "$name" --upload 8Mbit; done
submit_job "$job" --set evaluate_every=0 --set 'placement={stages: 2, strategy: equal-ops-joining}' --set "output=$work/slow.onnx"
"$weft" logs -f "$job_number" >"$work/saving.out" 2>&1 &
follower=$!
finish_job
[ "$RESULT" = completed ] || fail "the job ended otherwise: $LINE"
wait "$follower" || fail "logs -f ended with $?"
grep -qE 'saving checkpoint after step 1: [0-9.]+ of [0-9.]+ MiB$' "$work/saving.out" ||
  fail "nobody said how much was saved: $(cat "$work/saving.out")"
grep -o '"saving":{[^}]*}' "$work/events" | awk -F'[:,}]' '
  { step = $3; bytes = $5; saved = $7 + 0; if (saved > bytes || step != 1) bad = 1 }
  NR > 1 && (saved < last || bytes != all) { bad = 1 }
  saved > last { ++grew }
  { last = saved; all = bytes }
  END { printf "%d times more of %d bytes was saved\n", grew, all; exit bad || grew < 3 || all < 16000000 }' >"$work/grew" ||
  fail "what is saved: $(grep -o '"saving":{[^}]*}' "$work/events")"
echo "ok: over a slow line $(cat "$work/grew")"
