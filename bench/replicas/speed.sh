#!/usr/bin/env bash
# How many samples a second homes reach together over slow lines: as the planner's best (a pipeline, its links compressed as
# it likes, or one machine alone), and as replicas that agree every 30 steps. A broker and peers as processes of their own,
# each in a region of its own behind an emulated line; their devices compute nothing and take as long as TYPE would.
#   bench/replicas/speed.sh [RATE...]      8Mbit 20Mbit 100Mbit
# HOMES (6) peers; DEVICE (null:gtx1080ti/16), WIDTH (512), LAYERS (4), LENGTH (192) and BATCH (16) say what a step takes:
# 0.12 s on one. SLOW (0): so many of the homes have SLOW_DEVICE (null:gtx1080ti/48), and replicas run once more with shares
# of a round by speed. SECONDS_EACH (60): how long each is watched once it runs. A rate takes 3 minutes.
rates=("${@:-8Mbit}"); [ $# -gt 0 ] || rates=(8Mbit 20Mbit 100Mbit)
source "$(dirname "$0")/../../tests/e2e/cluster.sh"
homes=${HOMES:-6} slow=${SLOW:-0} slow_device=${SLOW_DEVICE:-null:gtx1080ti/48} device=${DEVICE:-null:gtx1080ti/16} batch=${BATCH:-16} each=${SECONDS_EACH:-60} every=${EVERY:-30}
cluster_begin
made_model_job <<YAML
data:
  train: {type: text, path: corpus.txt, sequence_length: ${LENGTH:-192}, validation: 0}
steps: 1000000
YAML
"${WEFT_BENCH_MODEL:-build/release/weft_bench_model}" "${WIDTH:-512}" "${LAYERS:-4}" "${LENGTH:-192}" "$work/model.onnx"
made_text $((${LENGTH:-192} * 4000)) >"$work/corpus.txt"

# samples_a_second [SUBMIT ARGS]: of the job while it is watched; PLAN is what the planner says of it.
samples_a_second() {
  local first last
  submit_job "$work/job.yaml" --set evaluate_every=0 --set checkpoint=null --set "batch_size=$batch" --set microbatch_size=1 "$@" --set "output=$work/out.onnx"
  wait_for_event '"event":"plan"' 300
  PLAN=$(sed -E 's/.*"lines":\["([^"]*)".*/\1/' <<<"$LINE") PREDICTED=$(field predicted_samples_per_second <<<"$LINE")
  wait_for_step $((every + 1))
  first=$STEP
  local began; began=$(microseconds)
  until [ $(($(microseconds) - began)) -gt $((each * 1000000)) ]; do next_step; last=$STEP; done
  RATE=$(awk -v n=$(((last - first) * batch)) -v us=$(($(microseconds) - began)) 'BEGIN { printf "%.1f", n * 1e6 / us }')
}
end_cluster() {
  end_process KILL "$submit_pid"
  for name in "${!peer_pid[@]}"; do lose_peer "$name"; done
  end_process KILL "$broker_pid"
}

printf '%-9s %-9s %10s %10s %7s  %s\n' line as samples/s predicted times plan
for rate in "${rates[@]}"; do
  { echo "devices:"
    for ((i = 0; i < homes; ++i)); do echo "  - {name: home$i, type: gtx1080ti, region: r$i, uplink: $rate, downlink: $rate}"; done
    echo "regions:"
    echo "  within: {round_trip_ms: 1, bandwidth: 1Gbit}"
    echo "  between:"
    for ((i = 0; i < homes; ++i)); do
      for ((j = i + 1; j < homes; ++j)); do echo "    - {from: r$i, to: r$j, round_trip_ms: 40, bandwidth: 1Gbit}"; done
    done
  } >"$work/lines.yaml"
  best=
  for as in best replicas $([ "$slow" -eq 0 ] || echo shares); do
    start_broker
    for ((i = 0; i < homes; ++i)); do
      start_peer "home$i" --device "$([ "$i" -lt "$slow" ] && echo "$slow_device" || echo "$device")" --listen 127.0.0.1:0 --emulate "$work/lines.yaml" --region "r$i" --as "home$i"
    done
    for ((i = 0; i < homes; ++i)); do wait_for_log "$work/home$i.log" 'info joined'; done
    if [ "$as" = best ]; then
      samples_a_second --set compression.policy=auto
      best=$RATE
    else
      shares=
      [ "$as" = replicas ] || shares=', shares: auto'
      samples_a_second --set "replicas=$homes" --set "sync={every: $every, codec: 'topk:0.02:int4'$shares}"
    fi
    printf '%-9s %-9s %10s %10.1f %7s  %s\n' "$rate" "$as" "$RATE" "$PREDICTED" "$(awk -v a="$RATE" -v b="$best" 'BEGIN { printf "%.2f", a / b }')" "$PLAN"
    end_cluster
    rm -rf "$work/broker" "$work"/peer-* "$work"/home*.log
    unset BROKER WEFT_TOKEN
  done
done
