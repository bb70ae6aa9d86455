#!/usr/bin/env bash
# Replicas with local steps on real processes: a broker and peers over TLS train copies of a model side by side, each in
# one stage or two, and agree every few steps; the trained file is, byte for byte, that of `weft local`, which computes the
# replicas one after the other: also after a kill, a stop and a resume, and where the last round is shorter.
# usage: replicas.sh [--quick]
source "$(dirname "$0")/cluster.sh"
cluster_begin
take_model gpt3
job=$work/job.yaml
sets=(--set batch_size=4 --set microbatch_size=2 --set checkpoint=null
      --set "data.test={type: npz, path: $work/data.npz}" --set evaluate_every=24)

# terms NAME REPLICAS STEPS SYNC: what a run is of, and its bytes on one machine.
terms() {
  name=$1 run=("${sets[@]}" --set "replicas=$2" --set "steps=$3" --set "sync=$4")
  "$weft" local "$job" "${run[@]}" --threads 1 --set "output=$work/$name.local.onnx" >"$work/$name.log"
}
start_broker --lease 3s
for peer in a b c d; do start_peer "$peer" --device cpu:1 --listen 127.0.0.1:0; done

terms two 2 36 '{every: 6, codec: "topk:0.05:int8"}'
submit_job "$job" "${run[@]}" --set placement.stages=1 --set "output=$work/out.onnx"
finish_job
same_file "2 replicas of a stage each" "$work/two.local.onnx" "$work/out.onnx"
same_file "2 replicas of a stage each: the inference twin" "$work/two.local.inference.onnx" "$work/out.inference.onnx"
submit_job "$job" "${run[@]}" --set placement.stages=2 --set "output=$work/out.onnx"
finish_job
same_file "2 replicas of 2 stages each" "$work/two.local.onnx" "$work/out.onnx"
grep '"event":"evaluation"' "$work/events" | field loss >"$work/evaluated"
grep -q . "$work/evaluated" || fail "nothing was evaluated"

# Three do not come out even: the last round deals 2, 2 and 1 of its steps.
terms three 3 41 '{every: 4, codec: dense, outer: {type: average}}'
submit_job "$job" "${run[@]}" --set placement.stages=1 --set "output=$work/out.onnx"
finish_job
same_file "3 replicas, and a last round of 5 steps" "$work/three.local.onnx" "$work/out.onnx"

# A replica that makes a third of the other's steps, also in a last round of 7 steps; then shares that the planner chose.
terms shares 2 47 '{every: 6, shares: [2, 6], codec: "topk:0.05:int8"}'
submit_job "$job" "${run[@]}" --set placement.stages=1 --set "output=$work/out.onnx"
finish_job
same_file "2 replicas, one of which makes fewer steps" "$work/shares.local.onnx" "$work/out.onnx"
submit_job "$job" "${run[@]}" --set sync='{every: 6, shares: auto, codec: "topk:0.05:int8"}' --set "output=$work/out.onnx"
finish_job
chosen=$(grep -o 'shares: \[[0-9, ]*\]' "$work/events" | head -n 1)
[ -n "$chosen" ] || fail "the plan does not say which shares it chose"
terms chosen 2 47 "{every: 6, $chosen, codec: \"topk:0.05:int8\"}"
same_file "2 replicas with $chosen, as the planner chose" "$work/chosen.local.onnx" "$work/out.onnx"

# Rounds and codec that a job leaves open are chosen once, whatever broker goes on with it. The record says them, and makes the
# same bytes: of the job that left them open, and of one that names them.
run=("${sets[@]}" --set replicas=2 --set steps=400)
submit_job "$job" "${run[@]}" --set sync='{every: {min: 2, max: 40}, codec: auto}' --set placement.stages=1 --set "output=$work/out.onnx"
wait_for_event '"event":"plan"'
every=$(sed -nE 's/.*an agreement of [^"]* as int4 every ([0-9]+) steps.*/\1/p' <<<"$LINE")
[ -n "$every" ] || fail "the plan does not say which rounds it chose: $LINE"
wait_for_step 20
end_process KILL "$broker_pid"
exec {broker_out}<&-
start_broker --lease 3s
next_step
finish_job
head -n 1 "$work/out.rounds.jsonl" | grep -q "{every: $every, codec: .\"int4" || fail "the record says other rounds: $(head -n 1 "$work/out.rounds.jsonl")"
"$weft" local "$job" "${run[@]}" --set sync='{every: {min: 2, max: 40}, codec: auto}' --threads 1 --replay "$work/out.rounds.jsonl" \
  --set "output=$work/replayed.onnx" >"$work/replayed.log"
same_file "rounds of $every steps, as the planner chose: replayed" "$work/replayed.onnx" "$work/out.onnx"
terms named 2 400 "{every: $every, codec: int4}"
same_file "the same, named" "$work/named.local.onnx" "$work/out.onnx"

# Rounds that overlap: an agreement travels while the next one is made.
terms overlap 2 67 '{every: 3, codec: int8, overlap: true, settle_every: 4}'
for stages in 1 2; do
  submit_job "$job" "${run[@]}" --set "placement.stages=$stages" --set "output=$work/out.onnx"
  finish_job
  same_file "2 replicas of $stages stages each, whose rounds overlap" "$work/overlap.local.onnx" "$work/out.onnx"
done
diff <(tail -n +2 "$work/overlap.local.rounds.jsonl") <(tail -n +2 "$work/out.rounds.jsonl") >&2 || fail "their record is another"
grep -q '"overlaps":true' "$work/out.rounds.jsonl" || fail "no round overlapped the next one"

# lose_one NAME SYNC SPARE WHAT: one of four peers with a stage of two replicas is killed; a spare takes the stage. So many
# steps that it still runs when there is somebody to be killed, and to be stopped.
lose_one() {
  terms "$1" 2 600 "$2"
  start_peer "$3" --device cpu:1 --listen 127.0.0.1:0
  submit_job "$job" "${run[@]}" --set placement.stages=2 --set "output=$work/out.onnx"
  wait_for_step 20
  lose_peer "$(one_of $(active_peers))"
  wait_for_recovery
  finish_job
  same_file "2 replicas of 2 stages$4, of which one was lost" "$work/$1.local.onnx" "$work/out.onnx"
}
lose_one late '{every: 6, codec: int8, overlap: true, fragments: 3}' e ' whose rounds overlap, each about a third of the model,'
lose_one kill '{every: 6, codec: int8}' f ''

# Stopped after an agreement, gone on with, and finished.
submit_job "$job" "${run[@]}" --set placement.stages=1 --set "output=$work/out.onnx"
wait_for_step 20
"$weft" stop "$job_number" >"$work/stop.log"
until [ "$(job_state)" = stopped ]; do sleep 0.1; done
"$weft" resume "$job_number" >>"$work/stop.log"
until [ "$(job_state)" = finished ]; do sleep 0.1; done
"$weft" fetch "$job_number" -o "$work/out.onnx" >>"$work/stop.log"
same_file "2 replicas, stopped and resumed" "$work/kill.local.onnx" "$work/out.onnx"
# Tensors that are long enough are agreed about in parts, each with an owner of its own. The bytes do not know of that: from the
# start, where rounds overlap, with a peer lost, and from where `weft local` had stopped with what is owed of whole tensors.
take_model resnet18w16
sets=(--set batch_size=4 --set microbatch_size=2 --set checkpoint=null)
terms parts 2 90 '{every: 6, codec: int4}'
start_peer g --device cpu:1 --listen 127.0.0.1:0
submit_job "$job" "${run[@]}" --set placement.stages=2 --set "output=$work/out.onnx"
wait_for_step 10
lose_peer "$(one_of $(active_peers))"
wait_for_recovery
finish_job
same_file "2 replicas that agree about parts of tensors, of which one was lost" "$work/parts.local.onnx" "$work/out.onnx"
terms parts_overlap 2 61 '{every: 6, codec: int8, overlap: true, settle_every: 3, fragments: 2}'
submit_job "$job" "${run[@]}" --set placement.stages=1 --set "output=$work/out.onnx"
finish_job
same_file "2 replicas that agree about parts, a fragment at a time" "$work/parts_overlap.local.onnx" "$work/out.onnx"
diff <(tail -n +2 "$work/parts_overlap.local.rounds.jsonl") <(tail -n +2 "$work/out.rounds.jsonl") >&2 || fail "their record is another"
grep -q '"fragment":1' "$work/out.rounds.jsonl" || fail "no round was about the second fragment"
"$weft" local "$job" "${run[@]}" --set "sync={every: 6, codec: int4}" --set "checkpoint={steps: 36}" --threads 1 --set "output=$work/half.onnx" >"$work/half.log"
submit_job "$job" "${run[@]}" --set "sync={every: 6, codec: int4}" --set placement.stages=1 --set "output=$work/out.onnx" \
  --resume "$work/half.onnx.checkpoints/checkpoint-36.json"
finish_job
same_file "2 replicas that agree about parts, from a checkpoint of whole tensors" "$work/half.onnx" "$work/out.onnx"
# What status says of one that has long to go.
submit_job "$job" "${run[@]}" --set steps=1000000 --set sync='{every: 6, shares: [2, 6]}' --set "output=$work/long.onnx"
wait_for_step 10
"$weft" status "$job_number" >"$work/status.txt"
grep -qE '^2 replicas, 2 and 6 steps a round; agreed after step [0-9]+, [0-9.]+m?s ago$' "$work/status.txt" ||
  { cat "$work/status.txt" >&2; fail "status does not say what replicas do"; }
echo "replicas: all the same"
