#!/usr/bin/env bash
# A job over real sockets, by planning strategy and compression: a broker, and a null peer for each device of a cluster file, its links
# emulated as that file says. Prints what a plan predicts and what a step reaches.
#   bench/wide_area/real.sh JOB CLUSTER "STRATEGIES" "COMPRESSIONS" [--set KEY=VALUE ...]
# STEPS (default 6) are made, the last three count. The devices are all of the catalogue.
job=$(realpath "${1:?JOB}") cluster=$(realpath "${2:?CLUSTER}") strategies=${3:?STRATEGIES} compressions=${4:?COMPRESSIONS}
shift 4
source "$(dirname "${BASH_SOURCE[0]}")/../../tests/e2e/cluster.sh"
steps=${STEPS:-6} format=${FORMAT:-text}
cluster_begin
start_broker --links measure --replication-rate none
count=0
while read -r type region name; do
  start_peer "$name" --device "null:$type" --listen 127.0.0.1:0 --emulate "$cluster" --region "$region" --as "$name"
  count=$((count + 1))
  until [ "$(peers_that_are pool | wc -l)" -eq "$count" ]; do sleep 0.2; done  # some strategies go by the order of joining
done < <("${WEFT_BUILD:-build/release}/weft_bench_wan" --list-devices "$cluster")
# Until what lies between any two is measured.
until [ "$("$weft" peers --links --format json | grep '"event":"link"' | grep -c '"assumed":false')" -ge $((count * (count - 1))) ]; do sleep 0.5; done

for strategy in $strategies; do
  for compression in $compressions; do
    until [ "$(peers_that_are pool | wc -l)" -eq "$count" ]; do sleep 0.2; done
    submit_job "$job" "$@" --set "placement.strategy=$strategy" --set placement.equal_bits=ignore \
      --set "compression.policy=$compression" --set evaluate_every=0 --set "steps=$steps" --set "output=$work/out.onnx"
    wait_for_event '"event":"plan"'
    predicted=$(sed -n 's/.*"predicted_samples_per_second": *\([0-9.e+-]*\).*/\1/p' <<<"$LINE")
    wait_for_step $((steps - 3)); began=$(microseconds)
    wait_for_step "$steps"; ended=$(microseconds)
    samples=$(grep '"event":"step"' "$work/events" | tail -n 1 |
      awk '{ match($0, /"seconds": ?[0-9.e+-]+/); t = substr($0, RSTART, RLENGTH); sub(/.*: ?/, "", t)
             match($0, /"samples_per_second": ?[0-9.e+-]+/); r = substr($0, RSTART, RLENGTH); sub(/.*: ?/, "", r); printf "%.0f", t * r }')
    awk -v format="$format" -v t=$((ended - began)) -v n="$samples" -v p="${predicted:-0}" -v s="$strategy" -v c="$compression" 'BEGIN {
      r = 3e6 * n / t
      if (format == "json")
        printf "{\"event\":\"row\",\"strategy\":\"%s\",\"compression\":\"%s\",\"samples_per_second\":%.6g,\"predicted_samples_per_second\":%.6g,\"clock\":\"real\"}\n", s, c, r, p
      else
        printf "%-17s %-8s %10.4g /s, predicted %10.4g (%+.1f%%), real\n", s, c, r, p, 100 * (r / p - 1) }'
    finish_job
  done
done
