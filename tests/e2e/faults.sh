#!/usr/bin/env bash
# Several faults in the life of one job, with real processes: a peer is killed, one freezes and wakes, the broker is killed
# and started again, a peer leaves politely. Half of the peers do not listen, so some links go through the broker's relay
# and have to heal when it is back. The job runs to its end, in the bytes of `weft local`. usage: faults.sh [--quick]
source "$(dirname "$0")/cluster.sh"
steps=400 lease=10
[ "${1:-}" != --quick ] || { steps=160 lease=3; }
cluster_begin
take_model gpt3
sets=(--set "steps=$steps" --set checkpoint.steps=20)
"$weft" local "$work/job.yaml" "${sets[@]}" --threads 1 --set "output=$work/local.onnx" --format json >/dev/null

broker_args=(--lease "${lease}s" --copy-rate 1Gbit)
start_broker "${broker_args[@]}"
for name in a b; do start_peer "$name" --device cpu:1 --listen 127.0.0.1:0; done
for name in c d e f; do start_peer "$name" --device cpu:1; done
submit_job "$work/job.yaml" "${sets[@]}" --set placement.stages=4 --set "output=$work/out.onnx"
wait_for_step $((steps / 8))
wait_for_pool 2

victim=$(one_of $(active_peers)); echo "killing $victim"
lose_peer "$victim"
wait_for_recovery
wait_for_step $((STEP + steps / 16))

victim=$(one_of $(active_peers)); echo "freezing $victim"
kill -STOP "${peer_pid[$victim]}"
wait_for_recovery
wait_for_step $((STEP + steps / 16))
kill -CONT "${peer_pid[$victim]}"
wait_for_pool 1

echo "killing the broker"
end_process KILL "$broker_pid"
start_broker "${broker_args[@]}"
wait_for_event 'the broker was restarted'
wait_for_step $((STEP + steps / 16))
wait_for_pool 1

victim=$(one_of $(active_peers)); echo "asking $victim to leave"
kill -INT "${peer_pid[$victim]}"
wait "${peer_pid[$victim]}" || fail "it left with exit status $?"
echo "ok: it left with exit status 0"
unset "peer_pid[$victim]"
finish_job
steps_are_whole "$steps"
same_file "after a kill, a freeze, a dead broker and a departure" "$work/local.onnx" "$work/out.onnx"
"$weft" status "$job_number"
