#!/usr/bin/env bash
# What copies of the state cost on slow lines, on this machine with the emulator: the GPT example in two stages, each peer on a
# line of RATE (default 20Mbit) with 40 ms round trip, with and without copies, in turns, the mean of
# ROUNDS (default 2).
#   bench/copies.sh [RATE [SECONDS [POLICY ...]]]     default: 20Mbit, 40 s each, none and auto
# Rates are steps a second between events of the job, after the first ten steps; the first round of copies is under way then.
source "$(dirname "$0")/../tests/e2e/cluster.sh"
rate=${1:-20Mbit} each=${2:-40}
policies=("${@:3}"); [ ${#policies[@]} -gt 0 ] || policies=(none auto)
cluster_begin
cat >"$work/lines.yaml" <<YAML
devices:
  - {name: far, type: gtx1080ti, region: here, uplink: $rate, downlink: $rate}
  - {name: away, type: gtx1080ti, region: here, uplink: $rate, downlink: $rate}
regions: {within: {round_trip_ms: 40, bandwidth: 1Gbit}}
YAML
made_text 300000 >"$work/corpus.txt"
fresh_cluster() {  # fresh_cluster RATE-OF-COPIES
  local name
  [ -z "$submit_pid" ] || end_process KILL "$submit_pid"
  for name in "${!peer_pid[@]}"; do lose_peer "$name"; done
  [ -z "$broker_pid" ] || end_process KILL "$broker_pid"
  rm -rf "$work/broker" "$work"/peer-* "$work"/*.log
  unset BROKER WEFT_TOKEN
  start_broker --replication-rate "$1"
  for name in far away; do
    start_peer "$name" --device cpu:1 --memory 2GiB --listen 127.0.0.1:0 --emulate "$work/lines.yaml" --region here --as "$name"
  done
}
measure() {  # measure POLICY RATE-OF-COPIES: sets SPEED, AT (the step of the newest recovery point)
  fresh_cluster "$2"
  submit_job examples/gpt/job.yaml --set "data.train.path=$work/corpus.txt" --set batch_size=16 --set microbatch_size=2 --set evaluate_every=0 \
    --set 'checkpoint={every: 1h}' --set schedule=null --set steps=100000 --set placement.stages=2 --set "compression={policy: $1}" --set "output=$work/out.onnx"
  wait_for_step 10
  local from=$STEP began now; began=$(microseconds)
  while now=$(microseconds); [ $((now - began)) -lt $((each * 1000000)) ]; do next_step; done
  SPEED=$(awk -v n=$((STEP - from)) -v t=$((now - began)) 'BEGIN { printf "%.3f", n * 1e6 / t }')
  [ -z "${RAW:-}" ] || "$weft" status "$job_number" --verbose
}
mean() { awk '{ sum += $1 } END { print sum / NR }'; }
for policy in "${policies[@]}"; do
  : >"$work/alone"; : >"$work/copied"
  for ((round = 0; round < ${ROUNDS:-2}; ++round)); do
    measure "$policy" none; echo "$SPEED" >>"$work/alone"
    measure "$policy" 100Mbit; echo "$SPEED" >>"$work/copied"
  done
  alone=$(mean <"$work/alone") copied=$(mean <"$work/copied")
  awk -v p="$policy" -v r="$rate" -v a="$alone" -v c="$copied" \
    'BEGIN { printf "%s, policy %s: %.2f steps/s without copies, %.2f with: they cost %.1f%%\n", r, p, a, c, 100 * (1 - c / a) }'
done
