#!/usr/bin/env bash
# Law 9 with real processes: a broker and four peers over TLS train each model in two, three and four stages, with one
# and two threads a peer; the trained file is, byte for byte, that of `weft local`. usage: equal_bits.sh [--quick]
source "$(dirname "$0")/cluster.sh"
cluster_begin
text=$work/corpus.txt
made_text 60000 >"$text"  # a tenth of it is evaluated, each time
gunzip -c tests/numerics/densenet/model.onnx.gz >"$work/densenet.onnx"
cp tests/numerics/densenet/job.yaml "$work/densenet.yaml"
cp tests/numerics/densenet/data.npz "$work/"
mkdir "$work/two_heads"
gunzip -c tests/numerics/two_heads/model.onnx.gz >"$work/two_heads/model.onnx"
cp tests/numerics/two_heads/{job.yaml,data.npz} "$work/two_heads/"

models=(densenet gpt two_heads)
quick=''; [ "${1:-}" != --quick ] || quick=1
if [ -n "$quick" ]; then :  # three models are enough
elif [ -r /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ]; then models+=(fashion)
else echo "skipped: fashion-mnist (./dev install data)"; fi
job_of() {
  case $1 in
    fashion) job=examples/fashion-mnist/job.yaml
             sets=(--set epochs=null --set steps=30 --set microbatch_size=16 --set evaluate_every=0 --set data.test=null) ;;
    gpt) job=examples/gpt/job.yaml; sets=(--set "data.train.path=$text" --set steps=12 --set batch_size=8 --set microbatch_size=2 --set gradient_ranges=2 --set evaluate_every=6) ;;
    densenet) job=$work/densenet.yaml; sets=() ;;
    two_heads) job=$work/two_heads/job.yaml; sets=(--set microbatch_size=4 --set evaluate_every=5) ;;  # two losses, of different weights
  esac
}

for model in "${models[@]}"; do
  job_of "$model"
  "$weft" local "$job" "${sets[@]}" --threads 1 --set "output=$work/$model.local.onnx" --format json >"$work/$model.local.json"
done

start_broker
run_all() {  # run_all THREADS STAGES...
  local threads=$1 stages model; shift
  for stages in "$@"; do
    for model in "${models[@]}"; do
      job_of "$model"
      "$weft" submit "$job" "${sets[@]}" --set "placement.stages=$stages" --set "output=$work/out.onnx" --format json >"$work/out.json"
      same_file "$model in $stages stages, $threads thread(s) a peer" "$work/$model.local.onnx" "$work/out.onnx"
      same_file "$model in $stages stages: its inference twin" "$work/$model.local.inference.onnx" "$work/out.inference.onnx"
      # Losses, norms and metrics too: every number but times.
      for f in "$work/$model.local.json" "$work/out.json"; do
        grep -E '"event": ?"(step|evaluation)"' "$f" | sed -E 's/,?"(seconds|samples_per_second|time|job)": ?("[^"]*"|[^,}]*)//g' >"$f.numbers"
      done
      same_file "$model in $stages stages: losses, norms and metrics" "$work/$model.local.json.numbers" "$work/out.json.numbers"
    done
  done
}
for name in a b c d; do start_peer "$name" --device cpu:1 --listen 127.0.0.1:0; done
cat >"$work/predict.yaml" <<YAML
model: densenet.onnx
task: predict
inputs: {x: image}
data: {predict: {type: npz, path: data.npz}}
batch_size: 24
output: predictions.npz
YAML
"$weft" local "$work/predict.yaml" --threads 1 --set "output=$work/local.npz" >"$work/predict.log"
"$weft" submit "$work/predict.yaml" --set placement.stages=3 --set "output=$work/out.npz" >>"$work/predict.log"
same_file "predictions in 3 stages" "$work/local.npz" "$work/out.npz"

# Inputs and labels stay with one peer, which has both ends of the row then: a ring, with the tied embedding in one place.
mkdir "$work/gpt3"
gunzip -c tests/numerics/gpt3/model.onnx.gz >"$work/gpt3/model.onnx"
cp tests/numerics/gpt3/{job.yaml,data.npz} "$work/gpt3/"
"$weft" local "$work/gpt3/job.yaml" --threads 1 --set "output=$work/ring.local.onnx" >"$work/ring.log"
"$weft" submit "$work/gpt3/job.yaml" --set 'placement={stages: 3, pin: [{ops: inputs, peer: a}, {ops: labels, peer: a}]}' \
  --set "output=$work/ring.onnx" --format json >"$work/ring.json"
grep -q 'stages on a, .*stage 1 with first and last ops' "$work/ring.json" || fail "no ring: $(grep '"plan"' "$work/ring.json")"
same_file "gpt with a tied embedding in a ring of 3 stages" "$work/ring.local.onnx" "$work/ring.onnx"

# Optimizer slots in eight bits: in stages, and from a checkpoint of one machine as a job of several.
slots=(--set optimizer.slots=int8 --set 'checkpoint={steps: 7}')
"$weft" local "$work/gpt3/job.yaml" "${slots[@]}" --threads 1 --set "output=$work/slots.local.onnx" >"$work/slots.log"
"$weft" submit "$work/gpt3/job.yaml" "${slots[@]}" --set placement.stages=3 --set "output=$work/slots.onnx" >>"$work/slots.log"
same_file "gpt with slots in eight bits, in 3 stages" "$work/slots.local.onnx" "$work/slots.onnx"
! cmp -s "$work/slots.local.onnx" "$work/ring.local.onnx" || fail "slots in eight bits have the bits of float32"
"$weft" local "$work/gpt3/job.yaml" "${slots[@]}" --threads 2 --resume "$work/slots.local.onnx.checkpoints/checkpoint-14.json" \
  --set "output=$work/resumed.onnx" >>"$work/slots.log"
same_file "the same from its checkpoint, on one machine" "$work/slots.local.onnx" "$work/resumed.onnx"
"$weft" submit "$work/gpt3/job.yaml" "${slots[@]}" --resume "$work/slots.local.onnx.checkpoints/checkpoint-14.json" \
  --set placement.stages=2 --set "output=$work/begun.onnx" >>"$work/slots.log"
same_file "the same from its checkpoint, in 2 stages" "$work/slots.local.onnx" "$work/begun.onnx"

# The planner chooses the size of microbatches; the run keeps it when the broker dies together with a stage's peer.
job_of gpt
sets+=(--set steps=2000 --set schedule=null --set evaluate_every=0)
submit_job "$job" "${sets[@]}" --set microbatch_size=auto --set placement.stages=2 --set "output=$work/auto.onnx"
wait_for_event 'microbatch_size: auto takes '
[[ $LINE =~ microbatch_size:\ auto\ takes\ ([0-9]+) ]] && size=${BASH_REMATCH[1]}
echo "chosen: microbatches of $size"
wait_for_step 5
victim=$(one_of $(active_peers))
end_process KILL "$broker_pid"
lose_peer "$victim"
start_broker
start_peer "$victim-again" --device cpu:1 --listen 127.0.0.1:0
wait_for_recovery
wait_for_step $((STEP + 5))
stop_job "$work/auto.onnx"
"$weft" local "$job" "${sets[@]}" --set "steps=$STEPS" --set "microbatch_size=$size" --threads 1 --set "output=$work/auto.local.onnx" >"$work/auto.log"
same_file "gpt with the size of microbatches that the planner chose, $STEPS steps" "$work/auto.local.onnx" "$work/auto.onnx"
lose_peer "$victim-again"
start_peer "$victim" --device cpu:1 --listen 127.0.0.1:0

if [ -n "$quick" ]; then run_all 1 2 4; else run_all 1 2 3 4; fi
# The same over the relay alone (no peer listens), with two threads each.
for name in a b c d; do end_process KILL "${peer_pid[$name]}"; done
for name in a b c d; do
  : >"$work/$name.log"
  # With --quick two of them, so that a stage at least has two threads: they wait for each other by spinning, and eight on two
  # processors would do little else. One after the other, for the same reason.
  if [ -n "$quick" ] && [[ $name = [cd] ]]; then threads=1; else threads=2; fi
  start_peer "$name" --device "cpu:$threads"
  wait_for_log "$work/$name.log" 'info joined'  # who still measures itself has no links yet
done
if [ -n "$quick" ]; then run_all 2 3; else run_all 2 2 3 4; fi
# Their links were measured over the relay, too.
relayed=$("$weft" peers --links --format json | grep '"event":"link"' | grep '"assumed":false' | grep -c '"relayed":true' || true)
[ "$relayed" -eq 12 ] || fail "$relayed of 12 links over the relay are known: $("$weft" peers --links)"
echo "ok: all links over the relay alone were measured"

# Peers with so little memory that their stages make forward values again in backward.
for name in a b c d; do end_process KILL "${peer_pid[$name]}"; done
job_of gpt
for name in e f; do start_peer "$name" --device cpu:1 --memory "${TIGHT_MIB:-60}MiB" --listen 127.0.0.1:0; done
sets+=(--set microbatch_size=4 --set batch_size=16 --set steps=2000 --set schedule=null --set evaluate_every=3)
submit_job "$job" "${sets[@]}" --set placement.stages=2 --set "output=$work/out.onnx"
wait_for_step 4
grep -q 'forward values again' "$work/events" || fail "the plan of two peers with little memory keeps everything: $(grep '"plan"' "$work/events")"
# One of them is lost on the way.
lose_peer "$(one_of e f)"
start_peer g --device cpu:1 --memory "${TIGHT_MIB:-60}MiB" --listen 127.0.0.1:0
wait_for_recovery
wait_for_step $((STEP + 3))
stop_job "$work/out.onnx"
"$weft" local "$job" "${sets[@]}" --set "steps=$STEPS" --threads 1 --set "output=$work/tight.onnx" >"$work/tight.log"
same_file "gpt in 2 stages that make forward values again, with a lost peer, $STEPS steps" "$work/tight.onnx" "$work/out.onnx"
echo "equal bits: all the same"
