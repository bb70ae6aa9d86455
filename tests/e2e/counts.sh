#!/usr/bin/env bash
# What a step counts over its whole batch: unevenly masked labels of two terms, class and sample weights, smoothing,
# groups of the optimizer and a norm that is clipped, in three stages whose peers are killed one after another, end in
# the bytes of `weft local`.
#   counts.sh [--quick] [--seed N]
source "$(dirname "$0")/cluster.sh"
seed=$((EPOCHSECONDS % 32768))
while [ $# -gt 0 ]; do
  case $1 in
    --quick) ;;
    --seed) seed=$2; shift ;;
    *) echo "usage: counts.sh [--quick] [--seed N]" >&2; exit 2 ;;
  esac
  shift
done
RANDOM=$seed
echo "counts: seed $seed"
cluster_begin
take_model tagger
sets=(--set schedule=null --set microbatch_size=2 --set shuffle=true)
placed=(--set steps=1000000 --set placement.stages=3)

start_broker --lease 3s
for name in a b c d e f; do start_peer $name --device cpu:1 --listen 127.0.0.1:0; done
for name in a b c d e f; do wait_for_log "$work/$name.log" 'info joined' 60; done
submit_job "$work/job.yaml" "${sets[@]}" "${placed[@]}"
wait_for_step 5
for _ in 1 2 3; do
  lose_peer "$(one_of $(active_peers))"
  wait_for_recovery
  wait_for_step $((STEP + 5))
done
"$weft" stop "$job_number" >/dev/null
finish_job
[ "$RESULT" = stopped ] || fail "the job ended otherwise: $LINE"
steps=$(field steps <<<"$LINE")
steps_are_whole "$steps"
"$weft" fetch "$job_number" -o "$work/out.onnx" >/dev/null
"$weft" local "$work/job.yaml" "${sets[@]}" --set "steps=$steps" --threads 1 --set "output=$work/local.onnx" --format json >/dev/null
same_file "three stages, three kills, $steps steps" "$work/local.onnx" "$work/out.onnx"
