#!/usr/bin/env bash
# Compressed links beside dense ones, with real processes: a run that is compared as often as can be ends in the bytes of one that
# never is, running statistics included; status and log say what was found, and a codec that
# hurts is told of.   guard.sh [--quick]
source "$(dirname "$0")/cluster.sh"
cluster_begin
start_broker --compare-share 0
for name in a b; do start_peer "$name" --device cpu:1 --listen 127.0.0.1:0; done
share() { end_process TERM "$broker_pid"; start_broker --compare-share "$1"; until [ "$(peers_that_are pool | wc -l)" -ge 2 ]; do sleep 0.1; done; }
submit_with() {  # submit_with CODEC OUTPUT [ARGS]
  submit_job "$work/job.yaml" --set "placement={stages: 2, strategy: equal-ops-joining}" --set "compression={policy: uniform, codec: $1}" \
    --set "output=$2" "${@:3}"
}
comparisons() { grep "info compared job=$job_number " "$work/broker.log" | wc -l; }

# ---- A model with running statistics, its gradient clipped: nothing that a comparison does is left behind.
take_model resnet_small
submit_with int4 "$work/never.onnx" --set steps=60
finish_job
[ "$(comparisons)" -eq 0 ] || fail "it was compared"
share 0.5
submit_with int4 "$work/often.onnx" --set steps=60
finish_job
[ "$(comparisons)" -ge 3 ] || fail "$(comparisons) comparisons in sixty steps"
steps_are_whole 60
same_file "compared $(comparisons) times" "$work/never.onnx" "$work/often.onnx"

# ---- A peer is killed between comparisons: the same bytes.
start_peer c --device cpu:1 --listen 127.0.0.1:0
submit_with int4 "$work/lost.onnx" --set steps=60
wait_for_step 20
mapfile -t victims < <(active_peers)
lose_peer "$(one_of "${victims[@]}")"
wait_for_recovery
finish_job
steps_are_whole 60
same_file "a peer lost" "$work/never.onnx" "$work/lost.onnx"

# ---- What status says, and what a codec that keeps a hundredth of the numbers is told.
submit_with topk:0.01:fp16 "$work/harmed.onnx" --set steps=20000
wait_for_event 'the job names their codecs itself'
# What is published lags behind the events by half a second.
until "$weft" status "$job_number" --format json >"$work/status.json" && grep -q '"comparison": *{"step": *[1-9]' "$work/status.json"; do
  [ "$(job_state)" = running ] || fail "status does not say what was compared: $(cat "$work/status.json")"
  next_step
done
"$weft" status "$job_number" >"$work/status.txt"
grep -q 'compressed links, after step' "$work/status.txt" || fail "status does not say it in words: $(cat "$work/status.txt")"
"$weft" stop "$job_number" >/dev/null
finish_job
echo "ok: $(grep "info compared job=$job_number " "$work/broker.log" | tail -n 1)"
