#!/usr/bin/env bash
# Copies of the state go from a stage straight to the peer that stands by for it, over real sockets: the broker gets none of their
# bytes, and when the stage is killed the spare goes on from the copy of a step that the broker never had, in the same bytes.
#   direct_copies.sh
source "$(dirname "$0")/cluster.sh"
cluster_begin
made_model_job <<YAML
data:
  train: {type: text, path: corpus.txt, sequence_length: 16, validation: 0}
steps: 1
YAML
# Two stages of 16 MB of state each: no commit waits for a copy of that.
"${WEFT_BENCH_MODEL:-build/release/weft_bench_model}" 1024 2 16 "$work/model.onnx"
sets=(--set evaluate_every=0 --set 'checkpoint={every: 1h}' --set steps=1000000 --set 'placement={stages: 2, strategy: equal-ops-joining}')

start_broker --lease 5s --copy-rate 1Gbit
for name in a b spare; do start_peer "$name" --device cpu:1 --listen 127.0.0.1:0; done
submit_job "$work/job.yaml" "${sets[@]}"
wait_for_step 5
wait_for_pool 1
# The step of the copy that the run would go back to now.
recovery_step() { "$weft" status "$job_number" --format json | grep -o '"recovery_step":[0-9]*' | cut -d: -f2; }
until grep -q 'copies_go_direct job=1' "$work/broker.log"; do next_step; done
echo "ok: a copy went to the spare"
received() { ss -tinH "sport = :${BROKER##*:}" | grep -o 'bytes_received:[0-9]*' | awk -F: '{ sum += $2 } END { print sum + 0 }'; }
before=$(received) from=$(recovery_step)
for copy in 1 2 3; do
  until [ "$(recovery_step)" -gt "$from" ]; do next_step; done
  from=$(recovery_step)
done
got=$(($(received) - before))
[ "$got" -lt 5000000 ] || fail "the broker received $got bytes while three copies went to the spare"
echo "ok: the broker received $((got / 1000)) kB while three copies went to the spare"
lose_peer "$(one_of $(active_peers))"
wait_for_event 'going on from the copy of step'
went=$(grep -o 'going on from the copy of step [0-9]*' <<<"$LINE" | grep -o '[0-9]*$')
[ "$went" -ge "$from" ] || fail "it went back to step $went, with a copy of step $from there"
wait_for_recovery
echo "ok: killed, the run went on from a copy that only peers had"
wait_for_step $((STEP + 3))
"$weft" stop "$job_number" >/dev/null
finish_job
[ "$RESULT" = stopped ] || fail "the job ended otherwise: $LINE"
steps=$(field steps <<<"$LINE")
steps_are_whole "$steps"
"$weft" fetch "$job_number" -o "$work/out.onnx" >/dev/null
"$weft" local "$work/job.yaml" --set "steps=$steps" --set evaluate_every=0 --threads 1 --set "output=$work/local.onnx" --format json >/dev/null
same_file "after $steps steps" "$work/local.onnx" "$work/out.onnx"
