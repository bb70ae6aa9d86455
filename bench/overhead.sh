#!/usr/bin/env bash
# What the distributed machinery costs: samples/s of two peers, each one thread on a core of its own, against `weft local`
# with two threads on the same two cores. Side by side, ROUNDS times (default 3); prints medians and their ratio.
#   bench/overhead.sh [ROUNDS [STEPS [WORD]]]     steps of each run: 40 of the GPT, 60 of Fashion-MNIST; WORD: only jobs
# whose name holds it
source "$(dirname "$0")/../tests/e2e/cluster.sh"
cluster_begin
rounds=${1:-3} gpt_steps=${2:-40} image_steps=${2:-60} word=${3:-}
text=$work/corpus.txt; made_text 300000 >"$text"
start_broker
for core in 0 1; do
  taskset -c $core "$weft" join "$BROKER" --token "$PEER_TOKEN" --name "core$core" --device cpu:1 --data-dir "$work/core$core" \
    --listen 127.0.0.1:0 >>"$work/core$core.log" 2>&1 &
  peer_pid[core$core]=$!
done
rate() {  # samples a second between the first and the last step line of a JSON log
  awk -v batch="$1" '/"event": ?"step"/ { match($0, /"seconds": ?[0-9.e+-]+/); t = substr($0, RSTART, RLENGTH); sub(/.*: ?/, "", t); n++; if (n > 5) { sum += t; count++ } } END { printf "%.1f\n", batch * count / sum }' "$2"
}
median() { sort -n | awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}'; }
measure() {  # measure NAME BATCH JOB SETS...
  local name=$1 batch=$2 job=$3 i; shift 3
  [[ $name == *$word* ]] || return 0
  : >"$work/alone"; : >"$work/two"
  for ((i = 0; i < rounds; ++i)); do
    "$weft" local "$job" "$@" --threads 2 --set "output=$work/o.onnx" --format json >"$work/l.json"; rate "$batch" "$work/l.json" >>"$work/alone"
    "$weft" submit "$job" "$@" --set placement.stages=2 --set "output=$work/o.onnx" --format json >"$work/s.json" 2>/dev/null; rate "$batch" "$work/s.json" >>"$work/two"
  done
  local alone two; alone=$(median <"$work/alone"); two=$(median <"$work/two")
  awk -v n="$name" -v a="$alone" -v b="$two" 'BEGIN { printf "%-28s local, 2 threads %8.1f samples/s   two pinned peers %8.1f samples/s   ratio %.2f\n", n, a, b, b / a }'
}
measure "GPT example, 4 x 4" 16 examples/gpt/job.yaml --set "data.train.path=$text" --set steps=$gpt_steps --set microbatch_size=4 --set evaluate_every=0 --set data.train.validation=0 --set clip_norm=null
measure "GPT, clipped, 4 x 4" 16 examples/gpt/job.yaml --set "data.train.path=$text" --set steps=$gpt_steps --set microbatch_size=4 --set evaluate_every=0 --set data.train.validation=0
[ ! -r /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ] ||
  measure "Fashion-MNIST example, 8 x 8" 64 examples/fashion-mnist/job.yaml --set epochs=null --set steps=$image_steps --set microbatch_size=8 --set evaluate_every=0 --set data.test=null
