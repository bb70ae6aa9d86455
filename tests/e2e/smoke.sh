#!/usr/bin/env bash
# Runs every bench, fuzz target and tool on tiny input and checks the form of each line that it prints. So
# nobody finds one broken on the day when its figures are wanted. The figures themselves are not looked at.
#   tests/e2e/smoke.sh [NAME ...]     every row of the table below, or those alone
# It builds nothing: ./dev smoke and ./dev bench NAME --smoke do. A row that cannot run here says skipped, and
# why. A row that takes longer than 10 s says so.
set -uo pipefail
cd "$(dirname "$0")/../.."
build=${WEFT_BUILD:-build/release} fuzz=${WEFT_FUZZ_BUILD:-build/fuzz} python=/usr/bin/python3
images=/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz
limit=${WEFT_SMOKE_LIMIT:-60}  # seconds after which a row is ended; a busy machine is slow
export WEFT=$build/weft WEFT_BUILD=$build WEFT_BENCH_MODEL=$build/weft_bench_model
export WEFT_BENCH_CONVERGENCE=$build/weft_bench_convergence
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
wanted=("$@") passed=0 skipped=() failed=() known=()

has_tun() {
  [ "$(id -u)" -eq 0 ] && { : <>/dev/net/tun; } 2>/dev/null && command -v nsenter ip >/dev/null
}
lacks() {  # lacks NEED: says what is not here; fails if all is
  case $1 in
    '') return 1 ;;
    torch) ! $python -c 'import torchvision, onnx' 2>/dev/null && echo "no PyTorch (./dev install torch)" ;;
    images) [ ! -r "$images" ] && echo "no dataset-fashion-mnist (./dev install data)" ;;
    tun) ! has_tun && echo "namespaces want root, /dev/net/tun, nsenter and ip" ;;
    fuzz) [ ! -x "$fuzz/weft_fuzz_seeds" ] && echo "no $fuzz (./dev build fuzz)" ;;
    rows) [ ! -s "$work/convergence-json.out" ] && echo "it draws the rows of convergence-json" ;;
    *) echo "no need is called $1" ;;
  esac
}

# row [-n NEED] NAME LEAST COMMAND... <<FORM: it ends with 0 within the limit, and prints LEAST lines or more.
# Each line has one of the FORMs: extended regular expressions, in which @ is a number, neither nan nor inf.
row() {
  local need='' name least why began
  [ "$1" != -n ] || { need=$2; shift 2; }
  name=$1 least=$2; shift 2
  known+=("$name")
  [ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " == *" $name "* ]] || return 0
  if why=$(lacks "$need"); then
    printf '%-18s skipped: %s\n' "$name" "$why"
    skipped+=("$name")
    return
  fi
  sed "s/@/$number/g" >"$work/form"
  began=${EPOCHREALTIME/[.,]/}
  timeout -k 5 "$limit" "$@" >"$work/$name.out" 2>"$work/$name.err" </dev/null
  why=$(what_is_wrong "$?" "$work/$name.out" "$least")
  report "$name" "$why" "$(grep -c . "$work/$name.out")" $((${EPOCHREALTIME/[.,]/} - began))
  if [ -z "$why" ]; then passed=$((passed + 1)); return; fi
  tail -n 5 "$work/$name.out" "$work/$name.err" >&2
  failed+=("$name")
}
number='[-+]? *[0-9]+([.][0-9]+)?(e[-+]?[0-9]+)?'
what_is_wrong() {  # what_is_wrong STATUS FILE LEAST
  local odd lines; odd=$(grep . "$2" | grep -vxE -m 1 -f "$work/form"); lines=$(grep -c . "$2")
  if [ "$1" = 124 ]; then echo "ended after $limit s"
  elif [ "$1" != 0 ]; then echo "ended with status $1"
  elif [ -n "$odd" ]; then echo "a line of another form: ${odd:0:300}"
  elif [ "$lines" -lt "$3" ]; then echo "$lines lines where $3 were to come"
  fi
}
report() {  # report NAME WHY LINES MICROSECONDS
  local long='' tenths=$(($4 / 100000))
  [ "$tenths" -le 100 ] || long=': longer than 10 s'
  printf '%-18s %s, %d lines in %d.%d s%s\n' "$1" "${2:+FAILED: }${2:-ok}" "$3" \
    $((tenths / 10)) $((tenths % 10)) "$long"
}
# What it writes is a model that weft can read: COMMAND of a row is "${made[@]}" FILE COMMAND...
made=(bash -c 'file=$1; shift; "$@" >&2 && "$WEFT" inspect "$file"' made)

# ---- the input ---------------------------------------------------------------------------------------------

tiny_job() {  # a model of a few KB and its job
  "$build/weft_bench_model" 16 3 4 "$work/model.onnx" || exit 1
  awk 'BEGIN { for (i = 0; i < 9000; ++i) printf "peer %d waits for stage %d.\n", i * 7 % 31, i * 5 % 13 }' \
    >"$work/corpus.txt"
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
for example in gpt fashion-mnist; do
  mkdir -p "$work/$example" && cp "examples/$example/export.py" "$work/$example/"
done

# ---- the table: kernels and codecs -------------------------------------------------------------------------

row kernels 3 "$build/weft_bench_kernels" softmax 1 <<'FORM'
cpu .*
softmax.* 1: +@ ms \(best +@\) +@ GB/s  .+
FORM
row few_rows 4 "$build/weft_bench_few_rows" heads 1 16 <<'FORM'
rows: GB/s of weights .*
1 threads
12 heads (q k|p v), 1024 keys +( +(1|2|4|8|12|16): +@ \(@; +@\)){6} +memory @
FORM
row codecs 20 "$build/weft_bench_codecs" - 1 <<'FORM'
loops: .*
1 M floats, memcpy @ GB/s
 +encode .*
[a-z0-9.:+]+( +@){4} \|( +@){4}
FORM
row convolutions 20 env bash -c '"$0" --list "$1" --all || [ $? = 1 ]' "$build/weft_bench_convolutions" \
    "$work/convolutions" <<'FORM'
==== ONEDNN_MAX_CPU_ISA=.*
cpu .*, 3 convolutions
(y |dx|dw) \[.*@ ms +@ GFLOP/s  gemm +@ +@
[a-z ]+
.* +@ ms
all: @ ms, the matrix products @ ms
0 of 9 failed
FAILED too slow: .*
[1-9] of 9 failed
FORM
row subnormals 10 "$build/weft_bench_subnormals" <<'FORM'
cpu .*
 +ordinary +subnormal +ratio
.* +@ ms +@ ms +@
FORM

row tokenizers 3 "$build/weft_bench_tokenizers" --smoke <<'FORM'
[0-9 ]*
(BPE|bytes): encode @ MB/s, decode @ MB/s; @ bytes, @ tokens, @ bytes decoded
FORM
row tokenizers-hf 1 bench/tokenizers/against_hf.sh none none <<'FORM'
skipped: .*
FORM

# ---- plans and models --------------------------------------------------------------------------------------

row plan 6 "$build/weft_bench_plan" 16 <<'FORM'
[A-Za-z0-9].*[a-z] +@ s +@ stages +@ ns a step [0-9a-f]{16}
.*, in all +@ s
.* +@ s +the model does not fit: .*
FORM
row stages 8 "$build/weft_bench_stages" --rounds 1 "$work/job.yaml" <<'FORM'
cpu .*
.* stage @ of @ +@ ms  predicted .*%  corrected .*%  four rates .*%  segments .* update .*
stages.* within 10%: .*
stages, .*
0 of @ runs .*
@ of @ runs .*
FORM
row model 3 "${made[@]}" "$work/made.onnx" "$build/weft_bench_model" 8 2 4 "$work/made.onnx" <<'FORM'
.+
FORM
row wan 3 bench/wan --quick --model gpt --links "$work/links.json" --strategy auto --compression none \
    --setting free <<'FORM'
links +gpt2-small free +auto +none +@ /s, predicted +@ \(.*%; from the start .*%\), +@ B a step, virtual.*
links, gpt2-small: best machine @ /s, best site @ /s, free network @ /s
  free: .*
FORM
row wan-json 2 bench/wan --quick --model gpt --links "$work/links.json" --strategy auto --compression none \
    --setting free --format json <<'FORM'
\{"event":"(row|topology)",.*\}
FORM
row wan-replicas 4 bench/wan --quick --model gpt --links "$work/links.json" --strategy auto --compression auto \
    --setting free --replicas 2 --every 4 --codec int4 --settle-every 1 <<'FORM'
links +gpt2-small free +auto +auto +@ /s, predicted +@ \(.*%; from the start .*%\), +@ B a step, virtual.*
links +gpt2-small free +replicas,int4 +waits +@ /s, predicted +@ \(.*%\), @x the best pipeline \(auto\+auto\), @ of sites .*
links, gpt2-small: best machine @ /s, best site @ /s, free network @ /s
  free: .*
FORM
learning=("$build/weft_bench_convergence" --model gpt --text "$work/corpus.txt" --steps 2 --every 1 --seeds 1
  --cuts 1 --codecs int4 --held-out 2 --set batch_size=4 --set microbatch_size=2)
row convergence 10 "${learning[@]}" <<'FORM'
gpt on corpus, 1 cuts, .*
policy .*
(none|uniform) +(dense|int4)( +@){6}
(none|uniform) +(dense|int4) +@ +@% \+- +@% +@%( +@){2}  .*
 +one of the machines alone +@ +@
FORM
row convergence-json 6 "${learning[@]}" --format json <<'FORM'
\{"event":"(setting|row|summary)",.*\}
FORM
row -n rows learning-plot 4 $python bench/learning/plot.py --table "$work/convergence-json.out" <<'FORM'
.+
FORM

yes "to be, or not to be, that is the question" | head -c 40000 >"$work/replicas.txt"
row replicas-learning 4 $python bench/replicas/learning "$work/replicas.txt" --out "$work/replicas" --rows few --steps 8 --threads 1 --weft "$WEFT" <<'FORM'
replicas +every +codec +seed +held-out loss .*
 +[0-9]+ +(-|[0-9]+) +(-|dense|batch x4|topk:0.02:int4|int4) +0 +@ +@ +@ +(-|@) +@
FORM

# ---- links, brokers and peers ------------------------------------------------------------------------------

row net 9 "$build/weft_bench_net" 0.05 1 <<'FORM'
(loopback|link|uplink|handshakes)[ ,].*@.*
FORM
row link-streams 3 "$build/weft_bench_link_streams" 1 <<'FORM'
(whole tensors|pieces), .*: @ MB/s; a small tensor that is needed first: median @ ms, 90% @ ms, of @
FORM
row -n tun link-streams-tun 4 env EACH=1 bench/link_streams.sh 100Mbit 1 0 <<'FORM'
100Mbit, 1 ms, .*
(whole tensors|pieces), .*: @ MB/s; a small tensor that is needed first: median @ ms, 90% @ ms, of @
FORM
row guesses 6 "$build/weft_bench_guesses" --smoke <<'FORM'
round_trip_ms=@ acceptance=@ streams=@ passes=@ client=@ ring=@ ring_of_bound=@ synchronous=@ in_flight=@ bound=@ of_bound=@ times_client=@ times_ring=@ guesses_right=@
FORM
row store 2 "$build/weft_bench_store" "$work" 10000 0.3 <<'FORM'
 *@ events, +@ MiB: open +@ ms, load +@ ms; pages not in memory: +@ ms, +@ ms
@ appends a second, .*: median @ ms, 99 % @ ms, longest @ ms
FORM
row broker-load 3 "$build/weft_bench_broker_load" 20 1 5 <<'FORM'
broker ready after @ s, @ MB
20 joins in @ s, @ s of .*
20 peers, @ s: @ heartbeats a second, worst round trip @ ms, 0 lost; broker: @ of a core, .*@ MB at most
FORM
row broker-steps 4 "$build/weft_bench_broker_steps" 2 <<'FORM'
parameters .*
 +parameters .*
 *@( +@){4} +@%
FORM
row task-gap 3 "$build/weft_bench_task_gap" 1 <<'FORM'
@ MB in tensors of 16 MiB, @ MB/s over all; short tasks of @ ms
stage [12], which .*: median @ ms, 90% @ ms, 99% @ ms, of @
FORM
row wan-real 5 env STEPS=4 LINKS=assume bench/wan --real --job "$work/job.yaml" --topology \
    bench/wide_area/three-sites.yaml --strategy equal-ops-joining --compression none <<'FORM'
three-sites[ ,].*
  free: .*
equal-ops-joining none +@ /s, predicted +@ \(.*%\), clock +@ \(.*%\), real
real and virtual clock agree within @%
FORM
row -n tun wan-netns 5 env STEPS=4 LINKS=assume bench/wan --netns --job "$work/job.yaml" --topology \
    bench/wide_area/three-sites.yaml --strategy equal-ops-joining --compression none <<'FORM'
three-sites[ ,].*
  free: .*
equal-ops-joining none +@ /s, predicted +@ \(.*%\), clock +@ \(.*%\), busiest way @% full, real
real and virtual clock agree within @%
FORM
row links 3 bench/links.sh matrix 3 <<'FORM'
(bits a second|FROM) .*
[abc]1: .*
[abc]1 +.*
@ of @ links were measured, .*
6 links within @ s: off by @% in the mean, @% at most .*
FORM
row copies 1 env LINKS=assume DEVICE=null:gtx1080ti MODEL=tiny ROUNDS=1 bench/copies.sh 1Gbit 1 none <<'FORM'
1Gbit, policy none, .*: @ steps/s without copies, @ with: .* @%; @ MB/s to the broker, .* @ steps back
FORM
row serve-ring 7 bench/serve_ring.py --smoke <<'FORM'
draft +@ ms @ tokens/s with @ right, @ measured: @ of the bound @, @ times by way of the client
bound +@ ms  C @ ms, L @ ms: @ tokens/s
(stage|client, computed) +@ ms @ tokens/s
streams +@ ms +[14]: @ ms a token, first after @ ms, @ tokens/s.*, predicted @, @ of the (bound|stage)
long prompt +@ ms first token after @ ms, predicted @ ms
FORM
row serve-ring-real 4 bench/serve_ring.py --real --stages 2 --smoke <<'FORM'
(weft serve|2 stages) +(1|16): @ ms a token, first after @ ms, @ tokens/s.*
FORM
row serve-ring-beside 1 bench/serve_ring.py --beside --smoke <<'FORM'
beside +@ ms +1: @ ms a token, first after @ ms, @ tokens/s, @ of alone; a step of the training @ ms, @ times one without streams
FORM
row serve-kills 10 $python tests/e2e/serve_kills.py --quick <<'FORM'
seed @
undisturbed: 8 streams, gaps median @ s, p95 @ s, max @ s
kill @: (stages [1-3].*, p[1-5].*|the broker), after @ pieces: gaps of @ to @ s
(two peers together|the broker) killed @ times: (gaps of @ streams|longest gap of each kill) median @ s, p95 @ s, max @ s
ok: @ texts as undisturbed, none ended early
FORM
row recovery 8 env LINKS=assume STAGES=2 ROUNDS=1 DEVICE=null:gtx1080ti bench/recovery.sh 1 1 1MB <<'FORM'
state of a stage about 1MB, 1 kills
  from a kill .* median @ s, p95 @ s, max @ s
  [a-z].*@.*
FORM
row large 10 bench/large.sh "$work/job.yaml" <<'FORM'
seconds: submitted after @, planned in @, running after @ more, all in @
[a-z-]+: at most @ MiB resident
\{"event":.*
-rw.*
[0-9a-f]{64}  .*
FORM
row two-peers 4 bench/two_peers.sh "$work/job.yaml" 1 <<'FORM'
ok: round 0: the same bytes
a step: one machine @ s, two peers @ s, predicted @ s: @ of the prediction, @ of one machine
.* (stage|step|core[01]|peer|cut) .*
stage .*
predicted .*
 +.*
slower than .*
FORM
row -n images overhead 1 bench/overhead.sh 1 8 Fashion <<'FORM'
Fashion-MNIST example, 8 x 8 +local, 2 threads +@ samples/s +two pinned peers +@ samples/s +ratio @
FORM
row against-peers 1 env STEPS=2 bench/learning/against_peers.sh gpt "$work/corpus.txt" 1 int8 <<'FORM'
gpt, 1 cuts, int8: @ losses, the same
FORM

# ---- beside PyTorch, and what exports models from it -------------------------------------------------------

row -n torch train-step 3 $python bench/train_step/run.py --weft "$build/weft" --workloads gpt-tiny \
    --rounds 1 --steps 1 --cache "$work/train_step" <<'FORM'
workload .*
gpt-tiny +@( +@){6} +@
\{"bench": "train_step", .*\}
FORM
row -n torch serve 6 bench/serve --smoke 2>/dev/null <<'FORM'
1 threads, +(16|96) before: weft +@ ms +torch +@ ms +ratio @
1 threads, +(1|4|16|64) sequences: +@ ms a pass, +@ tokens/s
1 threads, a prompt beside 8 sequences: p99 between tokens @ times
FORM
row -n torch stages-export 3 "${made[@]}" "$work/stages/squeezenet1_1/model.onnx" $python \
    bench/stages/export.py "$work/stages" squeezenet1_1 <<'FORM'
.+
FORM
row -n torch convolutions-list 1 $python bench/convolutions/list.py --out "$work/list.txt" \
    squeezenet1_1 <<'FORM'
@ convolutions in .*
FORM
row -n torch gpt-export 3 "${made[@]}" "$work/gpt/model.onnx" $python "$work/gpt/export.py" <<'FORM'
.+
FORM
row -n torch images-export 3 "${made[@]}" "$work/fashion-mnist/model.onnx" $python \
    "$work/fashion-mnist/export.py" <<'FORM'
.+
FORM
row -n torch plans-models 0 $python examples/plans/models.py "$work/plans" resnet101 <<'FORM'
.+
FORM

# ---- tools -------------------------------------------------------------------------------------------------

row adapters 5 $python bench/adapters/run.py --weft "$build/weft" --rounds 1 --layers 1 --width 32 --heads 2 \
    --vocabulary 256 --length 16 --steps 4 --rank 2 <<'FORM'
 +trained +s a step +device MB +peak MB
(full|lora) +@ +@ +@ +@
adapters take @ of the time and @ of the memory; the merged model is @ from them, and @ from the base
\{"time": @, "memory": @, "peak": @\}
FORM
row -n torch adapters-parity 3 $python bench/adapters/parity.py --weft "$build/weft" --steps 3 --layers 1 --width 32 --heads 2 \
    --vocabulary 256 --length 16 <<'FORM'
3 steps, loss @ to @
(loss|factors) +weft @ +PyTorch in float32 @
FORM
row adapters-real 6 env BASE=2 STEPS=2 RATE=1Gbit LINKS=assume bench/adapters/real.sh "$work/replicas.txt" "$work/replicas.txt" <<'FORM'
 +held out +perplexity +steps/s +peers sent +state
before +@ +@ +- +- +-
(adapters|whole), one machine +@ +@ +@ +- +@ [KM]iB
(adapters|whole), three peers +@ +@ +@ +@ MiB +-
FORM
row adapters-large 4 env MEMORY=512MiB SIZE='--layers 3 --width 256 --inner 512 --heads 2 --vocabulary 256 --length 16' bench/adapters/large.sh <<'FORM'
model: @ MiB beside @ KiB
submitted in @ s, planned @ s later; the step took @ s
written: @ MiB beside the model's own data
who +peak MiB +plan MiB
(client|broker) +@ +-
[abc] +@ +@
FORM
row weights 5 env SIZE='--layers 1 --width 64 --heads 2 --vocabulary 500 --length 16' RATE=1Gbit bench/weights/run.sh <<'FORM'
model.onnx: @ MiB; published: @ MiB
who has the weights +sent to broker +peers fetched +seconds
nobody +@ [KM]iB +all +@
the peers +@ [KM]iB +@ MiB +@
the broker and the peers +@ [KM]iB +@ MiB +@
ok: with published weights and without: the same bytes
FORM
row build 2 bench/build --size <<'FORM'
others use this machine .*
size of weft +@ MB of +@, ratio @
every limit is kept
FORM
row sim 3 "$build/weft-sim" --seed 1 --seeds 2 --peers 4 --minutes 1 <<'FORM'
seed @: ok; .*
2 seeds: @ virtual s in @ s, @x
FORM
row fuzz-seeds 23 bash -c '"$0" "$1" && ls "$1"' "$build/weft_fuzz_seeds" "$work/seeds" <<'FORM'
[a-z_]+
FORM
row poison 1 bash -c '"$0" 2>&1 || [ $? = 2 ]' "$build/weft_poison_sample" <<'FORM'
usage: .*
FORM
row dev-help 20 ./dev help <<'FORM'
.*
FORM
row -n fuzz fuzz "$(grep -c '^ *X(' tests/fuzz/targets.h)" tests/fuzz/run 1 <<'FORM'
target +executions .*
[a-z_]+ +@ +@  nothing
FORM

for name in "${wanted[@]}"; do
  [[ " ${known[*]} " == *" $name "* ]] || { echo "smoke: no row '$name'; there are ${known[*]}" >&2; exit 2; }
done
listed() { [ $# -eq 0 ] || echo " ($*)"; }
echo "smoke: $passed rows as they have to be; ${#failed[@]} failed$(listed "${failed[@]}");" \
  "${#skipped[@]} skipped$(listed "${skipped[@]}"); $SECONDS s"
[ ${#failed[@]} -eq 0 ]
