#!/usr/bin/env bash
# What a run loses when somebody joins it: two peers train a small GPT on a core each as replicas, a third one joins, and is
# given what they have over a line of RATE. Printed is for how long nobody made a step, and how many steps were made until it
# took part. Real compute, for a device that computes nothing has nothing that takes time to be given.
#   bench/replicas/join.sh [RATE]        10Mbit
# EVERY (100): steps of a round. It takes 2 minutes.
rate=${1:-10Mbit} every=${EVERY:-100}
source "$(dirname "$0")/../../tests/e2e/cluster.sh"
source bench/replicas/homes.sh
cluster_begin
made_text 100000 >"$work/corpus.txt"
made_home_lines 3 "$rate"
start_broker --copy-rate 1Mbit
for i in 0 1; do
  join_home "$i" cpu:1
  wait_for_log "$work/home$i.log" 'info joined'
done
submit_job examples/gpt/job.yaml --set "data.train.path=$work/corpus.txt" --set evaluate_every=0 --set checkpoint=null \
  --set schedule=null --set batch_size=2 --set microbatch_size=2 --set steps=1000000 --set placement.stages=1 \
  --set 'replicas={min: 2, max: 3}' --set "sync={every: $every, shares: auto, codec: int4}" --set "output=$work/out.onnx"
wait_for_step $((4 * every))
join_home 2 cpu:1
wait_for_event 'become 3 when they agree next' 120
wait_for_event '"event":"plan"' 120
plan=$LINE
wait_for_event 'going on after' 300
pause=$(grep -o 'after [0-9.]* s' <<<"$LINE" | grep -o '[0-9.]*')
next_step
from=$STEP
if [[ $plan == *'once it has been given'* ]]; then
  wait_for_event '"event":"plan"' 300
  wait_for_event 'going on after' 300
  pause+=" s, and once more for $(grep -o 'after [0-9.]* s' <<<"$LINE" | grep -o '[0-9.]*')"
  next_step
fi
echo "joined over $rate: nobody made a step for $pause s; until it took part the others made $((STEP - from)) steps"
