#!/usr/bin/env bash
# What a plan for two peers promises and what they reach: a job on two peers of one thread, each pinned to a core of its own,
# beside `weft local` on one thread of one core, in turns. Prints a step's median seconds and their ratios to the prediction and to one machine.
#   bench/two_peers.sh JOB [ROUNDS [SETS ...]]
# GPT-2 small: /usr/bin/python3 bench/train_step/export.py FOLDER gpt2-small, then JOB is FOLDER/gpt2-small/job.yaml.
# STAGES (default 2) is how many stages are asked for; auto leaves it to the planner.
source "$(dirname "$0")/../tests/e2e/cluster.sh"
job=${1:?JOB}
rounds=${2:-2}
shift; shift || true
cluster_begin
start_broker
for core in 0 1; do
  taskset -c "$core" "$weft" join "$BROKER" --token "$PEER_TOKEN" --name "core$core" --device cpu:1 --data-dir "$work/core$core" \
    --listen 127.0.0.1:0 >>"$work/core$core.log" 2>&1 &
  peer_pid[core$core]=$!
done
until [ "$(peers_that_are pool | wc -l)" -eq 2 ]; do sleep 0.2; done

step_seconds() {  # of each step after the second
  awk '/"event": ?"step"/ { match($0, /"seconds": ?[0-9.e+-]+/); t = substr($0, RSTART, RLENGTH); sub(/.*: ?/, "", t); if (++n > 2) print t }' "$1"
}
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
for ((round = 0; round < rounds; ++round)); do
  taskset -c 0 "$weft" local "$job" "$@" --threads 1 --set "output=$work/alone.onnx" --format json >"$work/alone.json"
  step_seconds "$work/alone.json" >>"$work/alone"
  "$weft" submit "$job" "$@" --set "placement.stages=${STAGES:-2}" --set "output=$work/two.onnx" --format json >"$work/two.json"
  step_seconds "$work/two.json" >>"$work/two"
  grep -m 1 '"event": *"plan"' "$work/two.json" | sed -n 's/.*"predicted_step_seconds": *\([0-9.e+-]*\).*/\1/p' >>"$work/predicted"
  same_file "round $round" "$work/alone.onnx" "$work/two.onnx"
done
grep -m 1 '"event": *"plan"' "$work/two.json" | sed 's/.*"lines": *\[//; s/"[],}]*$//; s/", *"/\n/g; s/^"//'
alone=$(median <"$work/alone") two=$(median <"$work/two") predicted=$(median <"$work/predicted")
awk -v a="$alone" -v b="$two" -v p="$predicted" 'BEGIN {
  printf "a step: one machine %.3f s, two peers %.3f s, predicted %.3f s: %.2f of the prediction, %.2f of one machine\n", a, b, p, b / p, b / a }'
