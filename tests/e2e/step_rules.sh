#!/usr/bin/env bash
# What a step computes, in three stages whose peers are killed one after another, ends in the bytes of `weft local`:
# unevenly masked labels of two terms, class and sample weights, smoothing, groups of the optimizer and a norm that is
# clipped; a step without a label that counts, which is skipped; statistics of BatchNormalization that are frozen.
#   step_rules.sh [--quick] [--seed N]
source "$(dirname "$0")/cluster.sh"
seed=$((EPOCHSECONDS % 32768))
while [ $# -gt 0 ]; do
  case $1 in
    --quick) ;;
    --seed) seed=$2; shift ;;
    *) echo "usage: step_rules.sh [--quick] [--seed N]" >&2; exit 2 ;;
  esac
  shift
done
RANDOM=$seed
echo "step_rules: seed $seed"
cluster_begin
start_broker --lease 3s

# A job with these settings in three stages, each of which loses its peer at least once as a rule; against one machine.
survives() {  # survives WHAT SETS..
  local what=$1 name sets=(--set schedule=null --set shuffle=true)
  shift
  for name; do sets+=(--set "$name"); done
  submit_job "$work/job.yaml" "${sets[@]}" --set steps=1000000 --set placement.stages=3
  wait_for_step 5
  for _ in 1 2 3; do
    lose_peer "$(one_of $(active_peers))"
    wait_for_recovery
    wait_for_step $((STEP + 5))
  done
  wait_for_step 45
  "$weft" stop "$job_number" >/dev/null
  finish_job
  [ "$RESULT" = stopped ] || fail "the job ended otherwise: $LINE"
  local steps; steps=$(field steps <<<"$LINE")
  steps_are_whole "$steps"
  "$weft" fetch "$job_number" -o "$work/out.onnx" >/dev/null
  "$weft" local "$work/job.yaml" "${sets[@]}" --set "steps=$steps" --threads 1 --set "output=$work/local.onnx" --format json >"$work/local"
  same_file "$what: three stages, three kills, $steps steps" "$work/local.onnx" "$work/out.onnx"
}
start_peers() {
  local name
  for name; do start_peer "$name" --device cpu:1 --listen 127.0.0.1:0; done
  for name; do wait_for_log "$work/$name.log" 'info joined' 60; done
}

start_peers a b c d e f
take_model tagger
survives "microbatches of 2" microbatch_size=2
start_peers g h i
# The fourth sample has no label that counts: alone in a batch, its step is skipped.
survives "a step without labels" batch_size=1 microbatch_size=1
grep -q '"skipped":true' "$work/local" || fail "no step was skipped"
start_peers j k l
take_model frozen_norms
survives "frozen statistics" microbatch_size=4
