#!/usr/bin/env bash
# Replicas that add each step's gradients, on real processes: a broker and peers over TLS compute parts of every step on copies
# of the model, each in one stage or two, and update by the same sums. The trained file is, byte for byte, that of `weft local`
# with as many gradient_ranges: also where a peer is killed and another takes its place, where nobody can and the run goes on
# with fewer, and where the broker is killed. Running statistics come out the same, too. So does all of it where a parameter's
# owner alone has the optimizer's slots of it. By a codec replicas learn as much.
# usage: exact_replicas.sh [--kills N]: also N runs in which a peer is killed, each at another step
source "$(dirname "$0")/cluster.sh"
cluster_begin
kills=0
[ "${1:-}" = --kills ] && kills=$2
take_model gpt3
mv "$work/job.yaml" "$work/gpt3.yaml"
job=$work/gpt3.yaml
sets=(--set batch_size=8 --set microbatch_size=2 --set schedule=null --set checkpoint=null
      --set "data.test={type: npz, path: $work/data.npz}" --set evaluate_every=24 --set gradient_ranges=4)

# terms NAME STEPS [SET...]: what a run is of, and its bytes on one machine.
terms() {
  name=$1 run=("${sets[@]}" --set "steps=$2" "${@:3}")
  "$weft" local "$job" "${run[@]}" --threads 1 --set "output=$work/$name.local.onnx" >"$work/$name.log"
}
same() {  # same NAME WHAT
  same_file "$2" "$work/$1.local.onnx" "$work/out.onnx"
}
# A run that somebody is killed in goes on until it is told to end; as many steps of it on one machine have the same bytes.
begin_long() {
  run=("${sets[@]}" --set steps=20000)
  submit_job "$job" "${run[@]}" --set "replicas=$1" "${@:2}" --set placement.stages=1 --set "output=$work/out.onnx"
}
wait_for_copy() {  # some copy of the state is whole: until then a loss begins the job anew
  until "$weft" status "$job_number" | grep -q 'copies after step [1-9]'; do sleep 0.1; done
}
end_and_compare() {  # end_and_compare WHAT
  wait_for_step $((STEP + 10))
  stop_job "$work/out.onnx"
  "$weft" local "$job" "${run[@]}" --threads 1 --set "steps=$STEPS" --set "output=$work/ended.local.onnx" >"$work/ended.log"
  same ended "$1, $STEPS steps"
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
for stages in 1 2; do
  submit_job "$job" "${run[@]}" --set 'replicas={min: 2, max: 2}' --set optimizer_state=shared --set "placement.stages=$stages" \
    --set "output=$work/out.onnx"
  finish_job
  replicas_are 2
  same plain "2 replicas that share slots, stages each: $stages"
done

# A net with BatchNorm.
mkdir "$work/net"
gunzip -c tests/numerics/resnet_small/model.onnx.gz >"$work/net/model.onnx"
cp tests/numerics/resnet_small/{job.yaml,data.npz} "$work/net/"
job=$work/net/job.yaml gpt=("${sets[@]}")
sets=(--set batch_size=16 --set microbatch_size=2 --set gradient_ranges=4)
terms statistics 8
for stages in 1 2; do
  submit_job "$job" "${run[@]}" --set 'replicas={min: 2, max: 2}' --set "placement.stages=$stages" --set "output=$work/out.onnx"
  finish_job
  replicas_are 2
  same statistics "2 replicas with running statistics, stages each: $stages"
done
submit_job "$job" "${run[@]}" --set 'replicas={min: 3, max: 3}' --set optimizer_state=shared --set placement.stages=1 \
  --set "output=$work/out.onnx"
finish_job
replicas_are 3
same statistics "3 replicas with running statistics that share slots"
job=$work/gpt3.yaml sets=("${gpt[@]}")

# One of four peers is killed: a fifth takes its place; then another, and nobody can. Then the broker.
start_peer e --device cpu:1 --listen 127.0.0.1:0
wait_for_peers e
begin_long '{min: 2, max: 4}'
wait_for_step 10
lose_peer "$(one_of $(active_peers))"
wait_for_recovery
lose_peer "$(one_of $(active_peers))"
wait_for_recovery
[ "$(active_peers | wc -l)" -ge 2 ] || fail "no two replicas are left"
end_process KILL "$broker_pid"
exec {broker_out}<&-
start_broker --lease 3s
next_step
end_and_compare "replicas of which two were lost, and the broker"

# Where a copy takes longer than a step each replica keeps its own. One is killed: the others have what it had. Then the broker.
end_process KILL "$broker_pid"
exec {broker_out}<&-
start_broker --lease 3s --copy-rate 5Mbit
for peer in f g; do start_peer "$peer" --device cpu:1 --listen 127.0.0.1:0; done
wait_for_log "$work/g.log" 'info joined'
begin_long '{min: 2, max: 3}'
wait_for_step 60
wait_for_copy
lose_peer "$(one_of $(active_peers))"
wait_for_event 'going on from the copy of step'
[[ $LINE =~ ,\ ([0-9]+)\ committed\ steps?\ (is|are)\ done ]] || fail "it does not say what is done again: $LINE"
[ "${BASH_REMATCH[1]}" -le 30 ] || fail "${BASH_REMATCH[1]} steps were done again, and the others had all of it"
wait_for_recovery
end_process KILL "$broker_pid"
exec {broker_out}<&-
start_broker --lease 3s --copy-rate 5Mbit
next_step
end_and_compare "replicas that keep copies themselves, of which one was lost, and the broker"

# The slots of one that is killed were nowhere else in the run: the broker has them. Then, with one less, the broker is killed.
begin_long '{min: 2, max: 3}' --set optimizer_state=shared
wait_for_step 60
wait_for_copy
lose_peer "$(one_of $(active_peers))"
wait_for_event 'going on from the copy of step'
wait_for_recovery
end_process KILL "$broker_pid"
exec {broker_out}<&-
start_broker --lease 3s --copy-rate 5Mbit
next_step
end_and_compare "replicas that share slots, of which one was lost, and the broker"

# By a codec it is not what one machine computes, but it is as good. All replicas have the same bytes, also after one was killed:
# they keep their copies themselves, and the broker compares them.
final_loss() { grep '"event":"step"' "$1" | tail -n 1 | field loss; }
start_peer coded --device cpu:1 --listen 127.0.0.1:0
run=("${sets[@]}" --set steps=120)
"$weft" local "$job" "${run[@]}" --threads 1 --set "output=$work/dense.onnx" --format json >"$work/dense.json"
submit_job "$job" "${run[@]}" --set 'replicas={min: 2, max: 2}' --set placement.stages=1 --set 'sync={every: step, codec: int8}' \
  --set "output=$work/out.onnx"
wait_for_event '"event":"plan"'
[[ $LINE == *"each step's gradients, "*" as int8, are added up"* ]] || fail "the plan does not say the codec: $LINE"
wait_for_step 40
lose_peer "$(one_of $(active_peers))"
wait_for_recovery
finish_job
replicas_are 2
awk -v one="$(final_loss "$work/dense.json")" -v coded="$(final_loss "$work/events")" \
  'BEGIN { printf "int8: loss %.4f after 120 steps, of one machine %.4f\n", coded, one; exit !(coded != one && coded < 1.1 * one && coded > 0.9 * one) }' ||
  fail "int8: nothing was encoded, or it learns something else"

for ((n = 0; n < kills; ++n)); do
  start_peer "k$n" --device cpu:1 --listen 127.0.0.1:0
  begin_long '{min: 2, max: 3}' --set "optimizer_state=$([ $((n % 2)) = 0 ] && echo shared || echo replicated)"
  wait_for_step $((3 + 5 * n))
  lose_peer "$(one_of $(active_peers))"
  wait_for_recovery
  end_and_compare "replicas of which one was lost at step $((3 + 5 * n))"
done
echo "exact_replicas: all the same"
