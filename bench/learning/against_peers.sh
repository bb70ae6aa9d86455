#!/usr/bin/env bash
# Whether bench/convergence computes what peers do: a few steps of an example's job with a broker and peers as processes of
# their own, each tensor encoded, sent over an emulated link and decoded, against the same steps in the bench: the same
# losses, digit for digit, and of the text also the held-out loss after them.
#   bench/learning/against_peers.sh gpt|resnet TEXT|- CUTS CODEC...
# Both are cut by the number of ops. Where something ties the ends of the row, the planner has two such cuts and takes the
# one that it predicts the shorter step for, by what it measured: the bench is run with slow and with fast links, which has
# one cut each, and either may be it.
source "$(dirname "$0")/../../tests/e2e/cluster.sh"
model=$1 text=$2 cuts=$3; shift 3
steps=${STEPS:-6}
bench=${WEFT_BENCH_CONVERGENCE:-build/release/weft_bench_convergence}
sets=(--set steps=$steps --set epochs=null --set checkpoint=null --set evaluate_every=0 --set seed=0
      --set "schedule={type: cosine, warmup_steps: 0, final: 0.1}")
# Of the text little is held out, of the images nothing: the last evaluation goes over slow links.
case $model in
  gpt) job=examples/gpt/job.yaml args=(--text "$text" --set data.train.validation=0.001)
       sets+=(--set "data.train.path=$(realpath "$text")" --set data.train.validation=0.001 --set batch_size=8 --set microbatch_size=2) ;;
  resnet) job=examples/fashion-mnist/job.yaml args=()
          sets+=(--set data.test=null --set batch_size=32 --set microbatch_size=8) ;;
  *) echo "usage: $0 gpt|resnet TEXT|- CUTS CODEC..." >&2; exit 2 ;;
esac
cluster_begin
start_broker --lease 10s
cat >"$work/links.yaml" <<YAML
regions: {within: {round_trip_ms: 40, bandwidth: 20Mbit}, between: [{from: here, to: there, round_trip_ms: 40, bandwidth: 20Mbit}]}
YAML
for ((i = 0; i <= cuts; ++i)); do
  start_peer "p$i" --device cpu:1 --memory 1GiB --listen 127.0.0.1:0 --emulate "$work/links.yaml" --region here
done
differ=0
for codec in "$@"; do
  submit_job "$job" "${sets[@]}" --set "placement={stages: $((cuts + 1)), strategy: equal-ops-joining}" \
    --set "compression={policy: uniform, codec: $codec}" --set "output=$work/trained.onnx"
  finish_job
  { grep '"event":"step"' "$work/events"; grep '"event":"evaluation"' "$work/events" || true; } | field loss >"$work/peers"
  same=
  for links in "20Mbit 40" "100Gbit 0.03"; do
    read -r rate round_trip <<<"$links"
    "$bench" --model "$model" "${args[@]}" --cuts "$cuts" --codecs "$codec" --seeds 1 --steps $steps --every 1 --held-out 8 \
      --bandwidth "$rate" --spread 1 --round-trip "$round_trip" --threads 1 --format json 2>"$work/bench.log" |
      grep '"event":"row".*"policy":"uniform"' >"$work/rows"
    field training_loss <"$work/rows" >"$work/bench"
    if grep -q '"event":"evaluation"' "$work/events"; then tail -n 1 "$work/rows" | field loss >>"$work/bench"; fi
    if cmp -s "$work/peers" "$work/bench"; then same=yes; break; fi
  done
  if [ -n "$same" ]; then
    echo "$model, $cuts cuts, $codec: $(wc -l <"$work/bench") losses, the same"
  else
    echo "$model, $cuts cuts, $codec: other losses (peers, bench):"
    paste "$work/peers" "$work/bench"
    grep -o '"event":"plan".*' "$work/events" || true
    differ=1
  fi
done
exit "$differ"
