#!/usr/bin/env bash
# A run that diverges, with real processes: the learning rate is absurd. The job fails once, with the step and what was
# not finite, and is not tried again; weft submit ends with status 7; the last checkpoint is fetched and trained on with
# a better rate. One machine alone stops at the same step.
source "$(dirname "$0")/cluster.sh"
cluster_begin
take_model gpt3
# It rises step by step, so that there are checkpoints from before it is too much.
sets=(--set steps=400 --set "optimizer={type: sgd, learning_rate: 60}" --set "schedule={type: constant, warmup_steps: 300}"
  --set clip_norm=null --set checkpoint.steps=5 --set evaluate_every=0)
status=0
"$weft" local "$work/job.yaml" "${sets[@]}" --threads 1 --set "output=$work/local.onnx" --format json >"$work/local.json" 2>"$work/local.log" || status=$?
[ "$status" -eq 7 ] || fail "weft local ended with status $status: $(cat "$work/local.log")"
grep -q 'not finite: step' "$work/local.log" || fail "$(cat "$work/local.log")"
done_alone=$(grep -c '"event":"step"' "$work/local.json")
[ "$done_alone" -gt 0 ] || fail "it diverged at once: nothing is shown"
echo "ok: alone: $(tail -n 1 "$work/local.log")"

start_broker
for name in a b c; do start_peer "$name" --device cpu:1 --listen 127.0.0.1:0; done
until [ "$(peers_that_are pool | wc -l)" -eq 3 ]; do sleep 0.2; done
submit_job "$work/job.yaml" "${sets[@]}" --set placement.stages=2 --set "output=$work/out.onnx"
while [[ $LINE != *'"event":"result"'* ]]; do next_event; done
[[ $LINE == *'"status":"failed"'* ]] || fail "the job ended otherwise: $LINE"
status=0
wait "$submit_pid" || status=$?
[ "$status" -eq 7 ] || fail "weft submit ended with status $status"
[ "$(job_state)" = failed ] || fail "weft status says $(job_state)"
said=$(grep '"state":"failed"' "$work/events" | tail -n 1)
[[ $said == *'not finite: stage '*"step $((done_alone + 1))"*'the model diverged'*'is kept'* ]] || fail "it says: $said"
echo "ok: in two stages: $(sed -n 's/.*"reason":"\([^"]*\)".*/\1/p' <<<"$said")"
[ "$("$weft" status "$job_number" --format json | field recoveries)" = 0 ] || fail "it was tried again"
[ "$(active_peers | wc -l)" -eq 0 ] && [ "$(peers_that_are pool | wc -l)" -eq 3 ] || fail "a peer was left out: $("$weft" peers)"

"$weft" fetch "$job_number" -o "$work/kept.onnx" >"$work/fetch.log" 2>&1 || fail "the checkpoint cannot be fetched: $(cat "$work/fetch.log")"
"$weft" local "$work/job.yaml" --set "model=$work/kept.onnx" --set steps=3 --set "output=$work/on.onnx" --threads 1 >"$work/on.log" 2>&1 ||
  fail "what was fetched is of no use: $(cat "$work/on.log")"
echo "ok: the checkpoint was fetched and is finite"
