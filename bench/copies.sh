#!/usr/bin/env bash
# What copies of the state cost on slow lines, on this machine with the emulator: the GPT example in two stages, each peer on a
# line of RATE (default 20Mbit) with 40 ms round trip, with and without copies, in turns, the mean of
# ROUNDS (default 2). MODEL=30MB takes two stages of 30 MB of state each instead (of weft_bench_model), MODEL=tiny of a few
# KB. DEVICE (default cpu:1) is what peers compute on; null:gtx1080ti computes nothing. LINKS=assume:
# nobody measures them. SPARE=1: a third peer stands by, on a line of its own, and copies are made through the broker and
# directly, in turns.
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
  - {name: spare, type: gtx1080ti, region: here, uplink: $rate, downlink: $rate}
regions: {within: {round_trip_ms: 40, bandwidth: 1Gbit}}
YAML
made_text 300000 >"$work/corpus.txt"
job=(examples/gpt/job.yaml --set "data.train.path=$work/corpus.txt" --set batch_size=16 --set microbatch_size=2 --set schedule=null)
if [ -n "${MODEL:-}" ]; then
  case $MODEL in 30MB) width=1600 ;; tiny) width=16 ;; *) fail "MODEL: 30MB or tiny" ;; esac
  made_model_job <<YAML
data:
  train: {type: text, path: corpus.txt, sequence_length: 16, validation: 0}
steps: 1
YAML
  "${WEFT_BENCH_MODEL:-build/release/weft_bench_model}" "$width" 2 16 "$work/model.onnx"
  job=("$work/job.yaml" --set batch_size=32 --set microbatch_size=8)
fi
names=(far away)
fresh_cluster() {  # fresh_cluster RATE-OF-COPIES WAY-OF-COPIES
  local name
  [ -z "$submit_pid" ] || end_process KILL "$submit_pid"
  for name in "${!peer_pid[@]}"; do lose_peer "$name"; done
  [ -z "$broker_pid" ] || end_process KILL "$broker_pid"
  rm -rf "$work/broker" "$work"/peer-* "$work"/*.log
  unset BROKER WEFT_TOKEN
  start_broker --links "${LINKS:-measure}" --copy-rate "$1" --copies "$2"
  for name in "${names[@]}"; do
    start_peer "$name" --device "${DEVICE:-cpu:1}" --memory 2GiB --listen 127.0.0.1:0 --emulate "$work/lines.yaml" --region here --as "$name"
  done
}
# Bytes that the broker has received over the connections that are open.
received() { ss -tinH "sport = :${BROKER##*:}" | grep -o 'bytes_received:[0-9]*' | awk -F: '{ sum += $2 } END { print sum + 0 }'; }
# Steps that a loss would now throw back.
behind() { echo $((STEP - $("$weft" status "$job_number" --format json | grep -o '"recovery_step":[0-9]*' | cut -d: -f2))); }
measure() {  # measure POLICY RATE-OF-COPIES WAY-OF-COPIES: sets SPEED, RECEIVED (bytes a second), BEHIND (steps, in the mean)
  fresh_cluster "$2" "$3"
  submit_job "${job[@]}" --set evaluate_every=0 --set 'checkpoint={every: 1h}' --set steps=100000 --set placement.stages=2 --set "compression={policy: $1}" --set "output=$work/out.onnx"
  wait_for_step 10
  local from=$STEP began now before looked=0 sum=0; began=$(microseconds) before=$(received)
  while now=$(microseconds); [ $((now - began)) -lt $((each * 1000000)) ]; do
    next_step
    [ $(((now - began) / 1000000)) -le "$looked" ] || { looked=$((looked + 1)) sum=$((sum + $(behind))); }
  done
  RECEIVED=$((($(received) - before) * 1000000 / (now - began)))
  BEHIND=$(awk -v s="$sum" -v n="$looked" 'BEGIN { printf "%.1f", n ? s / n : 0 }')
  SPEED=$(awk -v n=$((STEP - from)) -v t=$((now - began)) 'BEGIN { printf "%.3f", n * 1e6 / t }')
  [ -z "${RAW:-}" ] || "$weft" status "$job_number" --verbose
}
mean() { awk '{ sum += $1 } END { print sum / NR }'; }
ways=(broker)
[ -z "${SPARE:-}" ] || { names+=(spare); ways+=(direct); }
for policy in "${policies[@]}"; do
  rm -f "$work"/alone "$work"/copied-* "$work"/received-* "$work"/behind-*
  for ((round = 0; round < ${ROUNDS:-2}; ++round)); do
    measure "$policy" none broker; echo "$SPEED" >>"$work/alone"
    for way in "${ways[@]}"; do
      measure "$policy" 100Mbit "$way"
      echo "$SPEED" >>"$work/copied-$way"; echo "$RECEIVED" >>"$work/received-$way"; echo "$BEHIND" >>"$work/behind-$way"
    done
  done
  for way in "${ways[@]}"; do
    awk -v p="$policy" -v r="$rate" -v w="$way" -v a="$(mean <"$work/alone")" -v c="$(mean <"$work/copied-$way")" \
      -v b="$(mean <"$work/received-$way")" -v l="$(mean <"$work/behind-$way")" \
      'BEGIN { printf "%s, policy %s, copies %s: %.2f steps/s without copies, %.2f with: they cost %.1f%%; %.2f MB/s to the broker, a loss throws %.1f steps back\n",
               r, p, w == "broker" ? "through the broker" : "straight to the spare", a, c, 100 * (1 - c / a), b / 1e6, l }'
  done
done
