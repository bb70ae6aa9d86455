#!/usr/bin/env bash
# What a run gains by each peer that joins it: a broker and 2 peers train as replicas that agree every 30 steps, 6 more come
# one after another, each once the one before takes part. A region and an emulated line for each; their devices compute
# nothing and take as long as TYPE would.
#   bench/replicas/growth.sh [RATE]        20Mbit
# HOMES (8) peers in all; DEVICE (null:gtx1080ti/16), WIDTH (512), LAYERS (4), LENGTH (192), BATCH (16) and EVERY (30) as of
# speed.sh. SECONDS_EACH (30): how long each number of peers is watched. It takes 7 minutes.
rate=${1:-20Mbit}
source "$(dirname "$0")/../../tests/e2e/cluster.sh"
source bench/replicas/homes.sh
homes=${HOMES:-8} each=${SECONDS_EACH:-30}
cluster_begin
made_home_job
made_home_lines "$homes" "$rate"

start_broker
join_home 0
join_home 1
for i in 0 1; do wait_for_log "$work/home$i.log" 'info joined'; done
submit_home_job --set 'replicas={min: 2}' --set "sync={every: $every, codec: 'topk:0.02:int4'}"
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
  next_step
  watch_samples "$each"
  [ "$peers" -gt 2 ] || base=$RATE
  printf '%-6s %10s %14s %12s s  %s\n' "$peers" "$RATE" "$(awk -v a="$RATE" -v b="$base" -v n="$peers" 'BEGIN { printf "%.3f", a / (b * n / 2) }')" "$took" "$STEP"
done
"$weft" status "$job_number" | grep -E '^[0-9]+ replicas'
