#!/usr/bin/env bash
# Runs every bench, fuzz target and tool on tiny input and checks the form of each line that it prints. Nobody is to find
# one of them broken on the day when its figures are wanted; the figures themselves are not looked at.
#   tests/e2e/smoke.sh [NAME ...]     all rows of the table below, or those alone; ./dev bench NAME --smoke builds first
# It builds nothing. A row that cannot run here says skipped, and why; a row that takes longer than 10 s says so.
set -uo pipefail
cd "$(dirname "$0")/../.."
build=${WEFT_BUILD:-build/release} fuzz=${WEFT_FUZZ_BUILD:-build/fuzz} python=/usr/bin/python3
limit=${WEFT_SMOKE_LIMIT:-60}  # seconds after which a row is ended; a busy machine is slow
export WEFT=$build/weft WEFT_BUILD=$build WEFT_BENCH_MODEL=$build/weft_bench_model
export WEFT_BENCH_CONVERGENCE=$build/weft_bench_convergence
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
wanted=("$@") passed=0 skipped=() failed=() known=()

lacks() {  # lacks NEED: says what is not here; fails if all is
  case $1 in
    '') false ;;
    torch) ! $python -c 'import torch, torchvision, onnx' 2>/dev/null && echo "no python3-torch, python3-torchvision or python3-onnx" ;;
    images) [ ! -r /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ] && echo "no dataset-fashion-mnist" ;;
    tun) { [ "$(id -u)" -ne 0 ] || ! { : <>/dev/net/tun; } 2>/dev/null || ! command -v nsenter >/dev/null || ! command -v ip >/dev/null; } &&
           echo "namespaces and TUN links want root, /dev/net/tun, nsenter and ip" ;;
    fuzz) [ ! -x "$fuzz/weft_fuzz_seeds" ] && echo "no $fuzz (./dev build fuzz)" ;;
  esac
}

# row [-n NEED] NAME LEAST FORM COMMAND...: it ends with 0 within the limit, and each line that it prints has the FORM, an
# extended regular expression in which @ is a number (neither nan nor inf is one); there are LEAST lines or more.
row() {
  local need='' name least form why began
  [ "$1" != -n ] || { need=$2; shift 2; }
  name=$1 least=$2 form=$3; shift 3
  known+=("$name")
  [ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " == *" $name "* ]] || return 0
  if why=$(lacks "$need"); then
    printf '%-15s skipped: %s\n' "$name" "$why"
    skipped+=("$name")
    return
  fi
  began=${EPOCHREALTIME/[.,]/}
  timeout -k 5 "$limit" "$@" >"$work/$name.out" 2>"$work/$name.err" </dev/null
  why=$(what_is_wrong "$?" "$work/$name.out" "$least" "^(${form//@/$number})\$")
  awk -v name="$name" -v why="$why" -v lines="$(grep -c . "$work/$name.out")" -v us=$((${EPOCHREALTIME/[.,]/} - began)) 'BEGIN {
    printf "%-15s %s, %d lines in %.1f s%s\n", name, why == "" ? "ok" : "FAILED: " why, lines, us / 1e6, (us > 1e7) ? ": longer than 10 s" : "" }'
  if [ -n "$why" ]; then tail -n 5 "$work/$name.err" >&2; failed+=("$name"); else passed=$((passed + 1)); fi
}
# What it writes is a model that weft can read: COMMAND of a row is "${made[@]}" FILE COMMAND...
made=(bash -c 'file=$1; shift; "$@" >&2 && "$WEFT" inspect "$file"' made)
number='[-+]? *[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?'
what_is_wrong() {  # what_is_wrong STATUS FILE LEAST FORM
  local odd lines; odd=$(grep -vE -m 1 "$4|^\$" "$2"); lines=$(grep -c . "$2")
  if [ "$1" = 124 ]; then echo "ended after $limit s"
  elif [ "$1" != 0 ]; then echo "ended with status $1"
  elif [ -n "$odd" ]; then echo "a line of another form: ${odd:0:300}"
  elif [ "$lines" -lt "$3" ]; then echo "$lines lines where $3 were to come"
  fi
}

# ---- the input -----------------------------------------------------------------------------------------------------

tiny_job() {  # a model of a few KB and its job
  "$build/weft_bench_model" 16 3 4 "$work/model.onnx" || exit 1
  awk 'BEGIN { for (i = 0; i < 9000; ++i) printf "peer %d waits for stage %d.\n", i * 7 % 31, i * 5 % 13 }' >"$work/corpus.txt"
  cat >"$work/job.yaml" <<YAML
format: 1
model: model.onnx
task: train
inputs: {tokens: tokens}
loss: {type: cross_entropy, logits: logits, labels: targets}
data:
  train: {type: text, path: corpus.txt, sequence_length: 4, validation: 0}
steps: 8
batch_size: 4
microbatch_size: 2
optimizer: {type: adamw, learning_rate: 1e-3}
output: trained.onnx
YAML
}
tiny_job
head -n 3 bench/convolutions/list.txt >"$work/convolutions"
cat >"$work/links.json" <<JSON
{"regions": ["a", "b"], "round_trip_ms": [[1, 40], [40, 1]], "bandwidth_gbit_per_s": [[10, 0.1], [0.1, 10]]}
JSON
for example in gpt fashion-mnist; do mkdir -p "$work/$example" && cp "examples/$example/export.py" "$work/$example/"; done

# ---- the table: kernels and codecs ----------------------------------------------------------------------------------

row kernels 3 'cpu .*|softmax.* 1: +@ ms \(best +@\) +@ GB/s  .+' "$build/weft_bench_kernels" softmax 1
row codecs 20 'loops: .*|1 M floats, memcpy @ GB/s| +encode .*|[a-z0-9.:+]+( +@){4} \|( +@){4}' "$build/weft_bench_codecs" - 1
row convolutions 20 '==== ONEDNN_MAX_CPU_ISA=.*|cpu .*, 3 convolutions|(y |dx|dw) \[.*@ ms +@ GFLOP/s  gemm +@ +@|[a-z ]+|.* +@ ms|all: @ ms, the matrix products @ ms|0 of 9 failed|FAILED too slow: .*|[1-9] of 9 failed' \
  env bash -c '"$0" --list "$1" --all || [ $? = 1 ]' "$build/weft_bench_convolutions" "$work/convolutions"
row subnormals 10 'cpu .*| +ordinary +subnormal +ratio|.* +@ ms +@ ms +@' "$build/weft_bench_subnormals"

# ---- plans and models -----------------------------------------------------------------------------------------------

row plan 6 ' *@ ops, +@ devices, [a-z-]+ +@ s +@ stages, +@ samples/s(, after .*)?' "$build/weft_bench_plan" 16
row stages 8 'cpu .*|.* stage @ of @ +@ ms  predicted .*%  corrected .*%  four rates .*%  segments .* update .*|stages.* within 10%: .*|stages, .*|0 of @ runs .*|@ of @ runs .*' \
  "$build/weft_bench_stages" --rounds 1 "$work/job.yaml"
row model 3 '.+' "${made[@]}" "$work/made.onnx" "$build/weft_bench_model" 8 2 4 "$work/made.onnx"
row wan 3 'links +gpt2-small free +auto +none +@ /s, predicted +@ \(.*%; from the start .*%\), +@ B a step, virtual.*|links, gpt2-small: best machine @ /s, best site @ /s, free network @ /s|  free: .*' \
  bench/wan --quick --model gpt --links "$work/links.json" --strategy auto --compression none --setting free
row wan-json 2 '\{"event":"(row|topology)",.*\}' \
  bench/wan --quick --model gpt --links "$work/links.json" --strategy auto --compression none --setting free --format json
row convergence 10 'gpt on corpus, 1 cuts, .*|policy .*|(none|uniform) +(dense|int4)( +@){6}|(none|uniform) +(dense|int4) +@ +@% \+- +@% +@%( +@){2}  .*| +one of the machines alone +@ +@' \
  "$build/weft_bench_convergence" --model gpt --text "$work/corpus.txt" --steps 2 --every 1 --seeds 1 --cuts 1 --codecs int4 --held-out 2 --set batch_size=4 --set microbatch_size=2
row convergence-json 6 '\{"event":"(setting|row|summary)",.*\}' \
  "$build/weft_bench_convergence" --model gpt --text "$work/corpus.txt" --steps 2 --every 1 --seeds 1 --cuts 1 --codecs int4 --held-out 2 --set batch_size=4 --set microbatch_size=2 --format json
[ ! -s "$work/convergence-json.out" ] ||
  row learning-plot 4 '.+' $python bench/learning/plot.py --table "$work/convergence-json.out"

# ---- links, brokers and peers ---------------------------------------------------------------------------------------

row net 9 '(loopback|link|uplink|handshakes)[ ,].*@.*' "$build/weft_bench_net" 0.05 1
row link-streams 3 '(whole tensors|pieces), .*: @ MB/s; a small tensor that is needed first: median @ ms, 90% @ ms, of @' "$build/weft_bench_link_streams" 1
row -n tun link-streams-tun 4 '100Mbit, 1 ms, .*|(whole tensors|pieces), .*: @ MB/s; a small tensor that is needed first: median @ ms, 90% @ ms, of @' \
  env EACH=1 bench/link_streams.sh 100Mbit 1 0
row store 2 ' *@ events, +@ MiB: open +@ ms, load +@ ms; pages not in memory: +@ ms, +@ ms|@ appends a second, .*: median @ ms, 99 % @ ms, longest @ ms' \
  "$build/weft_bench_store" "$work" 10000 0.3
row broker-load 3 'broker ready after @ s, @ MB|20 joins in @ s, @ s of .*|20 peers, @ s: @ heartbeats a second, worst round trip @ ms, 0 lost; broker: @ of a core, @ MB now, @ MB at most' \
  "$build/weft_bench_broker_load" 20 1 5
row broker-steps 4 'parameters .*| +parameters .*| *@( +@){4} +@%' "$build/weft_bench_broker_steps" 2
row task-gap 3 '@ MB in tensors of 16 MiB, @ MB/s over all; short tasks of @ ms|stage [12], which .*: median @ ms, 90% @ ms, 99% @ ms, of @' "$build/weft_bench_task_gap" 1
row wan-real 5 'three-sites[ ,].*|  free: .*|equal-ops-joining none +@ /s, predicted +@ \(.*%\), clock +@ \(.*%\), real|real and virtual clock agree within @%' \
  env STEPS=4 bench/wan --real --job "$work/job.yaml" --topology bench/wide_area/three-sites.yaml --strategy equal-ops-joining --compression none
row -n tun wan-netns 5 'three-sites[ ,].*|  free: .*|equal-ops-joining none +@ /s, predicted +@ \(.*%\), clock +@ \(.*%\), busiest way @% full, real|real and virtual clock agree within @%' \
  env STEPS=4 bench/wan --netns --job "$work/job.yaml" --topology bench/wide_area/three-sites.yaml --strategy equal-ops-joining --compression none
row links 3 '(bits a second|FROM) .*|[abc]1: .*|[abc]1 +.*|@ of @ links were measured, .*|6 links within @ s: off by @% in the mean, @% at most .*' bench/links.sh matrix 3
row copies 1 '1Gbit, policy none, copies .*: @ steps/s without copies, @ with: they cost @%; @ MB/s to the broker, a loss throws @ steps back' \
  env DEVICE=null:gtx1080ti MODEL=tiny ROUNDS=1 bench/copies.sh 1Gbit 1 none
row recovery 8 'state of a stage about 1MB, 1 kills|  from a kill .* median @ s, p95 @ s, max @ s|  [a-z].*@.*' \
  env STAGES=2 ROUNDS=1 DEVICE=null:gtx1080ti bench/recovery.sh 1 1 1MB
row large 10 'seconds: submitted after @, planned in @, running after @ more, all in @|[a-z-]+: at most @ MiB resident|\{"event":.*|-rw.*|[0-9a-f]{64}  .*' bench/large.sh "$work/job.yaml"
row two-peers 4 'ok: round 0: the same bytes|a step: one machine @ s, two peers @ s, predicted @ s: @ of the prediction, @ of one machine|.* (stage|step|core[01]|peer|cut) .*|stage .*|predicted .*| +.*|slower than .*' \
  bench/two_peers.sh "$work/job.yaml" 1
row -n images overhead 1 'Fashion-MNIST example, 8 x 8 +local, 2 threads +@ samples/s +two pinned peers +@ samples/s +ratio @' bench/overhead.sh 1 8 Fashion
row against-peers 1 'gpt, 1 cuts, int8: @ losses, the same' bench/learning/against_peers.sh gpt "$work/corpus.txt" 1 int8

# ---- beside PyTorch, and what exports models from it ------------------------------------------------------------------

row -n torch train-step 3 'workload .*|gpt-tiny +@( +@){6} +@|\{"bench": "train_step", .*\}' \
  $python bench/train_step/run.py --weft "$build/weft" --workloads gpt-tiny --rounds 1 --steps 1 --cache "$work/train_step"
row -n torch stages-export 3 '.+' "${made[@]}" "$work/stages/squeezenet1_1/model.onnx" $python bench/stages/export.py "$work/stages" squeezenet1_1
row -n torch convolutions-list 1 '@ convolutions in .*' $python bench/convolutions/list.py --out "$work/list.txt" squeezenet1_1
row -n torch gpt-export 3 '.+' "${made[@]}" "$work/gpt/model.onnx" $python "$work/gpt/export.py"
row -n torch images-export 3 '.+' "${made[@]}" "$work/fashion-mnist/model.onnx" $python "$work/fashion-mnist/export.py"
row -n torch plans-models 0 '.+' $python examples/plans/models.py "$work/plans" resnet101

# ---- tools ----------------------------------------------------------------------------------------------------------

row sim 3 'seed @: ok; .*|2 seeds: @ virtual s in @ s, @x' "$build/weft-sim" --seed 1 --seeds 2 --peers 4 --minutes 1
row fuzz-seeds 19 '[a-z_]+' bash -c '"$0" "$1" && ls "$1"' "$build/weft_fuzz_seeds" "$work/seeds"
row poison 1 'usage: .*' bash -c '"$0" 2>&1 || [ $? = 2 ]' "$build/weft_poison_sample"
row dev-help 20 '.*' ./dev help
row -n fuzz fuzz "$(grep -c '^ *X(' tests/fuzz/targets.h)" 'target +executions .*|[a-z_]+ +@ +@  nothing' tests/fuzz/run 1

for name in "${wanted[@]}"; do
  [[ " ${known[*]} " == *" $name "* ]] || { echo "smoke: no row '$name'; there are ${known[*]}" >&2; exit 2; }
done
echo "smoke: $passed rows as they have to be, ${#failed[@]} not${failed:+ (${failed[*]})}, ${#skipped[@]} skipped${skipped:+ (${skipped[*]})}, $SECONDS s"
[ ${#failed[@]} -eq 0 ]
