#!/usr/bin/env bash
# What a peer offers with --memory is what it takes: a model of 100 MB is trained by two peers beside a spare that stands
# by, evaluated, copied for recovery; one peer is killed and the spare takes its stage. No process ever takes more than it
# offered (by a tenth, or 64 MiB). Peers that offer too little are told so before they take anything.   memory.sh [--quick]
source "$(dirname "$0")/cluster.sh"
skip_under_sanitizers
cluster_begin
maker=${WEFT_BENCH_MODEL:-build/release/weft_bench_model}
offered=${OFFERED_MIB:-640}
"$maker" 1024 24 16 "$work/model.onnx"
made_model_job <<YAML
data:
  train: {type: text, path: corpus.txt, sequence_length: 16, validation: 0.005}
steps: 50
evaluate_every: 20
checkpoint: {steps: 20}
YAML

peak_mib() { awk '/^VmHWM:/ { print int($2 / 1024) }' "/proc/${peer_pid[$1]}/status"; }
allowed_mib=$((offered + (offered / 10 > 64 ? offered / 10 : 64)))
stays_within() {  # stays_within NAME WHAT
  local peak; peak=$(peak_mib "$1")
  echo "$1 ($2): at most $peak MiB resident, $offered MiB offered"
  [ "$peak" -le "$allowed_mib" ] || fail "$1 took $peak MiB, it offered $offered MiB"
}

start_broker --lease 3s --copy-rate 1Gbit
start_peer small --device cpu:1 --memory 32MiB --listen 127.0.0.1:0
start_peer a --device cpu:1 --memory "${offered}MiB" --listen 127.0.0.1:0
# Halves, for peers of one machine: what was measured of each, beside the others, would else decide what is tested.
submit_job "$work/job.yaml" --set placement.stages=2 --set placement.strategy=equal-compute --set "output=$work/out.onnx"
wait_for_event 'does not fit'
grep -q 'small' <<<"$LINE" || fail "the reason does not name the peer that is too small: $LINE"
echo "ok: with a peer that offers too little the job waits: $(field reason <<<"$LINE" | cut -c1-160)..."
lose_peer small

start_peer b --device cpu:1 --memory "${offered}MiB" --listen 127.0.0.1:0
wait_for_step 3
start_peer spare --device cpu:1 --memory "${offered}MiB" --listen 127.0.0.1:0
wait_for_step 25  # by then it has fetched what it stands by for, more than once
for name in a b; do stays_within $name "a stage"; done
stays_within spare "stands by"
lose_peer b
wait_for_recovery
finish_job
steps_are_whole 50
stays_within a "a stage, after a recovery"
stays_within spare "took the stage over"
