#!/usr/bin/env bash
# What a run gains by each peer that joins it: a broker and 2 peers train as replicas that agree every 30 steps, 6 more come
# one after another, each once the one before takes part. A region and an emulated line for each; their devices compute
# nothing and take as long as TYPE would.
#   bench/replicas/growth.sh [RATE]        20Mbit
# HOMES (8) peers in all; DEVICE (null:gtx1080ti/16), WIDTH (512), LAYERS (4), LENGTH (192), BATCH (16) and EVERY (30) as of
# speed.sh. SECONDS_EACH (30): how long each number of peers is watched. It takes 7 minutes.
rate=${1:-20Mbit}
source "$(dirname "$0")/../../tests/e2e/cluster.sh"
homes=${HOMES:-8} device=${DEVICE:-null:gtx1080ti/16} batch=${BATCH:-16} each=${SECONDS_EACH:-30} every=${EVERY:-30}
cluster_begin
made_model_job <<YAML
data:
  train: {type: text, path: corpus.txt, sequence_length: ${LENGTH:-192}, validation: 0}
steps: 1000000
YAML
"${WEFT_BENCH_MODEL:-build/release/weft_bench_model}" "${WIDTH:-512}" "${LAYERS:-4}" "${LENGTH:-192}" "$work/model.onnx"
made_text $((${LENGTH:-192} * 4000)) >"$work/corpus.txt"
{ echo "devices:"
  for ((i = 0; i < homes; ++i)); do echo "  - {name: home$i, type: gtx1080ti, region: r$i, uplink: $rate, downlink: $rate}"; done
  echo "regions:"
  echo "  within: {round_trip_ms: 1, bandwidth: 1Gbit}"
  echo "  between:"
  for ((i = 0; i < homes; ++i)); do
    for ((j = i + 1; j < homes; ++j)); do echo "    - {from: r$i, to: r$j, round_trip_ms: 40, bandwidth: 1Gbit}"; done
  done
} >"$work/lines.yaml"
join_home() { start_peer "home$1" --device "$device" --listen 127.0.0.1:0 --emulate "$work/lines.yaml" --region "r$1" --as "home$1"; }

# watch: samples a second from here on, as RATE.
watch() {
  local first began last
  next_step
  first=$STEP began=$(microseconds)
  until [ $(($(microseconds) - began)) -gt $((each * 1000000)) ]; do next_step; last=$STEP; done
  RATE=$(awk -v n=$(((last - first) * batch)) -v us=$(($(microseconds) - began)) 'BEGIN { printf "%.1f", n * 1e6 / us }')
}

start_broker
join_home 0
join_home 1
for i in 0 1; do wait_for_log "$work/home$i.log" 'info joined'; done
submit_job "$work/job.yaml" --set evaluate_every=0 --set checkpoint=null --set "batch_size=$batch" --set microbatch_size=1 \
  --set 'replicas={min: 2}' --set "sync={every: $every, codec: 'topk:0.02:int4'}" --set "output=$work/out.onnx"
wait_for_event '"event":"plan"' 300
printf '%-6s %10s %14s %14s  %s\n' peers samples/s proportional joined_after steps
for ((peers = 2; peers <= homes; ++peers)); do
  took=0
  if [ "$peers" -gt 2 ]; then
    began=$(microseconds)
    join_home $((peers - 1))
    wait_for_event "become $peers when they agree next" 300
    wait_for_event '"event":"plan"' 300
    wait_for_step 1
    took=$(awk -v us=$(($(microseconds) - began)) 'BEGIN { printf "%.1f", us / 1e6 }')
  fi
  watch
  [ "$peers" -gt 2 ] || base=$RATE
  printf '%-6s %10s %14s %12s s  %s\n' "$peers" "$RATE" "$(awk -v a="$RATE" -v b="$base" -v n="$peers" 'BEGIN { printf "%.3f", a / (b * n / 2) }')" "$took" "$STEP"
done
"$weft" status "$job_number" | grep -E '^[0-9]+ replicas'
