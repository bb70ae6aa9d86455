#!/usr/bin/env bash
# Replicas that add each step's gradients, on real processes: a broker and peers over TLS compute parts of every step on copies
# of the model, each in one stage or two, and update by the same sums. The trained file is, byte for byte, that of `weft local`
# with as many gradient_ranges: also where a peer is killed and another takes its place, where nobody can and the run goes on
# with fewer, and where the broker is killed. Running statistics come out the same, too.
# usage: exact_replicas.sh [--kills N]: also N runs in which a peer is killed, each at another step
source "$(dirname "$0")/cluster.sh"
cluster_begin
kills=0
[ "${1:-}" = --kills ] && kills=$2
text=$work/corpus.txt
made_text 100000 >"$text"
job=examples/gpt/job.yaml
sets=(--set "data.train.path=$text" --set batch_size=8 --set microbatch_size=2 --set checkpoint=null
      --set evaluate_every=24 --set gradient_ranges=4)

# terms NAME STEPS [SET...]: what a run is of, and its bytes on one machine.
terms() {
  name=$1 run=("${sets[@]}" --set "steps=$2" "${@:3}")
  "$weft" local "$job" "${run[@]}" --threads 1 --set "output=$work/$name.local.onnx" >"$work/$name.log"
}
same() {  # same NAME WHAT
  same_file "$2" "$work/$1.local.onnx" "$work/out.onnx"
}
replicas_are() {  # of the plan: how many there are
  local seats
  seats=$(grep '"event":"plan"' "$work/events" | tail -n 1 | grep -o '"replica":[0-9]*' | sort -u | wc -l)
  [ "$seats" -eq "$1" ] || fail "the plan has $seats replicas, not $1"
}
start_broker --lease 3s
for peer in a b c d; do start_peer "$peer" --device cpu:1 --listen 127.0.0.1:0; done

terms plain 30 --set clip_norm=0.5
submit_job "$job" "${run[@]}" --set 'replicas={min: 2, max: 2}' --set placement.stages=1 --set "output=$work/out.onnx"
finish_job
replicas_are 2
same plain "2 replicas of a stage each"
submit_job "$job" "${run[@]}" --set 'replicas={min: 4, max: 4}' --set placement.stages=1 --set "output=$work/out.onnx"
finish_job
replicas_are 4
same plain "4 replicas of a stage each"
submit_job "$job" "${run[@]}" --set 'replicas={min: 2, max: 2}' --set placement.stages=2 --set "output=$work/out.onnx"
finish_job
replicas_are 2
same plain "2 replicas of 2 stages each"
submit_job "$job" "${run[@]}" --set 'replicas={min: 3, max: 3}' --set placement.stages=1 --set "output=$work/out.onnx"
finish_job
replicas_are 3
same plain "3 replicas, of which one computes two ranges"

# A net with BatchNorm, where its data is.
images=/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz
if [ -r "$images" ]; then
  job=examples/fashion-mnist/job.yaml gpt=("${sets[@]}")
  sets=(--set epochs=null --set batch_size=32 --set microbatch_size=4 --set schedule.warmup_steps=2 --set evaluate_every=null
        --set data.test=null --set checkpoint=null --set gradient_ranges=4)
  terms statistics 8
  for stages in 1 2; do
    submit_job "$job" "${run[@]}" --set 'replicas={min: 2, max: 2}' --set "placement.stages=$stages" --set "output=$work/out.onnx"
    finish_job
    replicas_are 2
    same statistics "2 replicas with running statistics, stages each: $stages"
  done
  job=examples/gpt/job.yaml sets=("${gpt[@]}")
else
  echo "skipped: fashion-mnist (./dev install data)"
fi

# One of four peers is killed: a fifth takes its place; then another, and nobody can. Then the broker.
terms kill 90
start_peer e --device cpu:1 --listen 127.0.0.1:0
submit_job "$job" "${run[@]}" --set 'replicas={min: 2, max: 4}' --set placement.stages=1 --set "output=$work/out.onnx"
wait_for_step 10
lose_peer "$(one_of $(active_peers))"
wait_for_recovery
lose_peer "$(one_of $(active_peers))"
wait_for_recovery
[ "$(active_peers | wc -l)" -ge 2 ] || fail "no two replicas are left"
end_process KILL "$broker_pid"
exec {broker_out}<&-
start_broker --lease 3s
finish_job
same kill "replicas of which two were lost, and the broker"

# Where a copy would take minutes each replica keeps its own. One is killed: the others have what it had.
end_process KILL "$broker_pid"
exec {broker_out}<&-
start_broker --lease 3s --copy-rate 10Mbit
for peer in f g; do start_peer "$peer" --device cpu:1 --listen 127.0.0.1:0; done
wait_for_log "$work/g.log" 'info joined'
terms kept 120
submit_job "$job" "${run[@]}" --set 'replicas={min: 2, max: 3}' --set placement.stages=1 --set "output=$work/out.onnx"
wait_for_step 60
lose_peer "$(one_of $(active_peers))"
wait_for_event 'going on from the copy of step'
[[ $LINE =~ ,\ ([0-9]+)\ committed\ steps?\ (is|are)\ done ]] || fail "it does not say what is done again: $LINE"
[ "${BASH_REMATCH[1]}" -le 30 ] || fail "${BASH_REMATCH[1]} steps were done again, and the others had all of it"
wait_for_recovery
finish_job
same kept "replicas that keep copies themselves, of which one was lost"

terms one 60
for ((n = 0; n < kills; ++n)); do
  start_peer "k$n" --device cpu:1 --listen 127.0.0.1:0
  submit_job "$job" "${run[@]}" --set 'replicas={min: 2, max: 3}' --set placement.stages=1 --set "output=$work/out.onnx"
  wait_for_step $((3 + 5 * n))
  lose_peer "$(one_of $(active_peers))"
  wait_for_recovery
  finish_job
  same one "replicas of which one was lost at step $((3 + 5 * n))"
done
echo "exact_replicas: all the same"
