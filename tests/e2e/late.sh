#!/usr/bin/env bash
# A machine that stands still in the middle of a round, and is there: the others go on without its replica. It wakes up while
# they end their round, with half of its own made. The record says it all, and `weft local --replay` makes the same bytes.
# With --long it is a replica again when it has rested (five minutes).
source "$(dirname "$0")/cluster.sh"
if is_sanitized; then echo "skipped: steps take too long there for a round to be waited for" >&2; exit 77; fi
cluster_begin
# A small model, for every step is made again; and so many steps a round that there is time to be early in one. The run goes
# on until it is told to end.
take_model gpt3
job=$work/job.yaml
every=120
sets=(--set batch_size=4 --set microbatch_size=2 --set schedule=null --set checkpoint=null --set evaluate_every=0
      --set steps=20000 --set 'replicas={min: 2, max: 3}' --set placement.stages=1
      --set "sync={every: $every, codec: \"topk:0.05:int8\"}")

start_broker --lease 60s
for peer in a b c; do start_peer "$peer" --device cpu:1 --listen 127.0.0.1:0; done
wait_for_peers a b c
submit_job "$job" "${sets[@]}" --set "output=$work/out.onnx"
# Two rounds of all three tell what one takes; then early in the next one: who stands still while they agree is waited for
# until it is lost.
wait_for_step $((6 * every + every / 2))
sleeper=$(one_of $(active_peers))
kill -STOP "${peer_pid[$sleeper]}"
wait_for_event 'the others have waited'
kill -CONT "${peer_pid[$sleeper]}"
[[ $LINE == *" for $sleeper, and a round takes "*'the others end their round without replica '* ]] ||
  fail "it does not say who is late: $LINE"
[[ $LINE == *"; $every steps are done again, and no other's"* ]] || fail "its steps of one round are done again: $LINE"
wait_for_event 'without those that were lost, after step'
wait_for_recovery
wait_for_log "$work/$sleeper.log" 'its replica is left out: the others have waited'
if [ "${1:-}" = --long ]; then
  wait_for_event '2 replicas become 3 when they agree next' 90
  wait_for_event '"event":"plan"'
  [[ $LINE == *'"replica":2'* ]] || fail "it is no replica again: $LINE"
  next_step
fi
wait_for_step $((STEP + 6 * every))  # nobody is late any more
stop_job "$work/out.onnx"
[ "$(grep -c 'the others have waited' "$work/events")" = 1 ] || fail "somebody was late more than once"
made=$(steps_of_record "$work/out.rounds.jsonl")
[ "$made" = "$STEPS" ] || fail "the record has $made steps of $STEPS"
sets+=(--set "steps=$STEPS")
"$weft" local "$job" "${sets[@]}" --replay "$work/out.rounds.jsonl" --threads 1 --set "output=$work/local.onnx" >"$work/local.log"
same_file "3 replicas, one of which stood still for a while, $STEPS steps" "$work/local.onnx" "$work/out.onnx"
echo "late: the same"
