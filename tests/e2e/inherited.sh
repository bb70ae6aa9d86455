#!/usr/bin/env bash
# Replicas over lines on which a copy of their state would take minutes: each keeps what it has, and what all agreed on is
# with all of them. One is killed, then another: who takes its place goes on with the optimizer's state of a replica that is
# left, and no more than a few rounds are done again. The record says it, and `weft local --replay` makes the same bytes.
source "$(dirname "$0")/cluster.sh"
cluster_begin
text=$work/corpus.txt
made_text 100000 >"$text"
job=examples/gpt/job.yaml
sets=(--set "data.train.path=$text" --set batch_size=4 --set microbatch_size=2 --set checkpoint=null --set evaluate_every=0
      --set steps=240 --set replicas=2 --set 'sync={every: 6, codec: "topk:0.05:int8"}')

start_broker --lease 3s --copy-rate 100kbit
for peer in a b c d e f; do start_peer "$peer" --device cpu:1 --listen 127.0.0.1:0; done
submit_job "$job" "${sets[@]}" --set placement.stages=2 --set "output=$work/out.onnx"
for step in 60 140; do
  wait_for_step "$step"
  lose_peer "$(one_of $(active_peers))"
  wait_for_event "alone had is gone: it goes on with the optimizer's state of replica"
  wait_for_event 'going on from the copy of step'
  wait_for_recovery
done
finish_job
[ "$(grep -c '"sets":' "$work/out.rounds.jsonl")" = 2 ] || fail "the record does not say twice whose state a replica took"
again=$(grep -o '[0-9]* committed steps* \(is\|are\) done again' "$work/events" | awk '$1 > most { most = $1 } END { print most + 0 }')
[ "$again" -le 60 ] || fail "$again steps were done again after a loss"
cp "$work/out.rounds.jsonl" "$work/record.jsonl"
"$weft" local "$job" "${sets[@]}" --replay "$work/record.jsonl" --threads 1 --set "output=$work/local.onnx" >"$work/local.log"
same_file "2 replicas of 2 stages, of which two were lost with what they alone had" "$work/local.onnx" "$work/out.onnx"
echo "inherited: the same"
