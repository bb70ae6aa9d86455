#!/usr/bin/env bash
# How many samples a second machines near each other make of one model, exactly: as one pipeline, and as replicas that compute
# parts of every step and add up its gradients, which ends in the same bytes. A broker and peers as processes of their own, each
# in a region of its own behind an emulated line; their devices compute nothing and take as long as TYPE would.
#   bench/replicas/exact.sh [RATE...]      100Mbit 1Gbit
# HOMES (4) peers; DEVICE, WIDTH, LAYERS, LENGTH and BATCH as in homes.sh; ROUND_TRIP_MS (1) between two of them.
# SECONDS_EACH (30): how long each is watched once it runs. A rate takes 2 minutes. CODECS: of the gradients, for more such runs
# beside the dense one (CODECS="int8 int4"); those end in other bytes. LEAST (1): so many replicas there are at least, also where
# a pipeline would take no longer.
rates=("$@"); [ $# -gt 0 ] || rates=(100Mbit 1Gbit)
source "$(dirname "$0")/../../tests/e2e/cluster.sh"
source bench/replicas/homes.sh
homes=${HOMES:-4} each=${SECONDS_EACH:-30} least=${LEAST:-1}
cluster_begin
made_home_job

printf '%-9s %-9s %10s %10s %7s  %s\n' line as samples/s predicted times plan
for rate in "${rates[@]}"; do
  made_home_lines "$homes" "$rate"
  sed -i "s/round_trip_ms: 40/round_trip_ms: ${ROUND_TRIP_MS:-1}/" "$work/lines.yaml"
  pipeline=
  for as in pipeline dense ${CODECS:-}; do
    start_broker
    for ((i = 0; i < homes; ++i)); do join_home "$i"; done
    for ((i = 0; i < homes; ++i)); do wait_for_log "$work/home$i.log" 'info joined'; done
    replicas=(--set "replicas={min: $least, max: $homes}" --set "sync={every: step, codec: $as}")
    [ "$as" != pipeline ] || replicas=(--set replicas=1)
    submit_home_job "${replicas[@]}" --set "gradient_ranges=$homes"
    wait_for_event '"event":"plan"' 300
    plan=$(sed -E 's/.*"lines":\["([^"]*)".*/\1/' <<<"$LINE") predicted=$(field predicted_samples_per_second <<<"$LINE")
    wait_for_step 5
    watch_samples "$each"
    [ "$as" != pipeline ] || pipeline=$RATE
    printf '%-9s %-9s %10s %10.1f %7s  %s\n' "$rate" "$as" "$RATE" "$predicted" "$(awk -v a="$RATE" -v b="$pipeline" 'BEGIN { printf "%.2f", a / b }')" "$plan"
    end_homes
  done
done
