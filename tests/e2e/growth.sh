#!/usr/bin/env bash
# A run that grows with whoever joins, on real processes: one peer trains, a second becomes a replica by itself, one of the
# two is killed, and the run goes on as one. The record that `weft submit` writes says who made which steps: `weft local --replay` makes the same bytes.
source "$(dirname "$0")/cluster.sh"
if is_sanitized; then echo "skipped: the run would have ended before it could grow" >&2; exit 77; fi
cluster_begin
# A small model: the run goes on until it is told to end, and every step of it is made again. So many steps a round that
# what they save is more than an agreement takes on a busy machine.
take_model gpt3
job=$work/job.yaml
every=40
sets=(--set batch_size=4 --set microbatch_size=2 --set schedule=null --set checkpoint=null --set steps=20000
      --set "data.test={type: npz, path: $work/data.npz}" --set evaluate_every=120
      --set replicas=auto --set placement.stages=1
      --set "sync={every: $every, shares: auto, codec: \"topk:0.05:int8\"}")

start_broker --lease 3s
start_peer a --device cpu:1 --listen 127.0.0.1:0
submit_job "$job" "${sets[@]}" --set "output=$work/out.onnx"
wait_for_step 20
start_peer b --device cpu:1 --listen 127.0.0.1:0
wait_for_event '1 replica becomes 2 when they agree next' 60
wait_for_event '"event":"plan"'
[[ $LINE == *'"replica":1'* ]] || fail "the run did not grow: $LINE"
next_step
wait_for_step $((STEP + 8 * every))
"$weft" status "$job_number" >"$work/status.txt"
grep -qE '^2 replicas, ' "$work/status.txt" || { cat "$work/status.txt" >&2; fail "status does not show two replicas"; }
lose_peer "$(one_of $(active_peers))"
wait_for_event '"event":"plan"' 60
[[ $LINE != *'"replica":1'* ]] || fail "there is nobody for a second replica: $LINE"
wait_for_recovery
wait_for_step $((STEP + 3 * every))
stop_job "$work/out.onnx"
made=$(steps_of_record "$work/out.rounds.jsonl")
[ "$made" = "$STEPS" ] || fail "the record has $made steps of $STEPS"
grep -q '"steps":\[[0-9]*,[0-9]*\]' "$work/out.rounds.jsonl" || fail "no round of two replicas is in the record"
grep -q '"event":"evaluation"' "$work/events" || fail "nothing was evaluated"
sets+=(--set "steps=$STEPS")
"$weft" local "$job" "${sets[@]}" --replay "$work/out.rounds.jsonl" --threads 1 --set "output=$work/local.onnx" >"$work/local.log"
same_file "a run of one, two and one replicas, made again by its record, $STEPS steps" "$work/local.onnx" "$work/out.onnx"
echo "growth: the same"
