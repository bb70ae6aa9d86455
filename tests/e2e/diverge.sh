#!/usr/bin/env bash
# Runs that diverge, with real processes. First an absurd learning rate: the job goes back once, diverges at the same
# step and fails, with the step and what was not finite; weft submit ends with status 7; the last checkpoint is fetched
# and trained on with a better rate. One machine alone stops at that step at once. Then data with a sample that overflows:
# `stop` names the step that reads it. Then with one that is not a number: `stop` refuses it by its row before a peer is
# asked, `skip` learns nothing from it and ends in the same bytes on one machine, in two stages, and in two stages of which
# one is killed.
source "$(dirname "$0")/cluster.sh"
poison=${WEFT_POISON_SAMPLE:-build/release/tests/support/weft_poison_sample}
cluster_begin
take_model gpt3
alone() {  # alone STATUS [ARGS]: its events are in $work/local.json
  local status=0
  "$weft" local "$work/job.yaml" "${sets[@]}" "${@:2}" --threads 1 --set "output=$work/local.onnx" --format json >"$work/local.json" 2>"$work/local.log" || status=$?
  [ "$status" -eq "$1" ] || fail "weft local ended with status $status: $(cat "$work/local.log")"
}
# It rises step by step, so that there are checkpoints from before it is too much.
sets=(--set steps=400 --set "optimizer={type: sgd, learning_rate: 60}" --set "schedule={type: constant, warmup_steps: 300}"
  --set clip_norm=null --set checkpoint.steps=5 --set evaluate_every=0)
alone 7
grep -q 'not finite: step' "$work/local.log" || fail "$(cat "$work/local.log")"
done_alone=$(grep -c '"event":"step"' "$work/local.json")
[ "$done_alone" -gt 0 ] || fail "it diverged at once: nothing is shown"
echo "ok: alone: $(tail -n 1 "$work/local.log")"

start_broker
for name in a b c; do start_peer "$name" --device cpu:1 --listen 127.0.0.1:0; done
until [ "$(peers_that_are pool | wc -l)" -eq 3 ]; do sleep 0.2; done
fails_in_two_stages() {  # fails_in_two_stages STEP: sets `said`
  submit_job "$work/job.yaml" "${sets[@]}" --set placement.stages=2 --set "output=$work/out.onnx"
  while [[ $LINE != *'"event":"result"'* ]]; do next_event; done
  [[ $LINE == *'"status":"failed"'* ]] || fail "the job ended otherwise: $LINE"
  local status=0
  wait "$submit_pid" || status=$?
  [ "$status" -eq 7 ] || fail "weft submit ended with status $status"
  [ "$(job_state)" = failed ] || fail "weft status says $(job_state)"
  grep -q '"text":"not finite: stage .*step '"$1"'.*; tried once more: going on from' "$work/events" || fail "it did not go back first: $(cat "$work/events")"
  said=$(grep '"state":"failed"' "$work/events" | tail -n 1)
  [[ $said == *'not finite: stage '*"step $1"*', again after going back: the model diverged'* ]] || fail "it says: $said"
  echo "ok: in two stages: $(sed -n 's/.*"reason":"\([^"]*\)".*/\1/p' <<<"$said")"
  [ "$("$weft" status "$job_number" --format json | field recoveries)" = 1 ] || fail "it did not go back once"
  [ "$(active_peers | wc -l)" -eq 0 ] && [ "$(peers_that_are pool | wc -l)" -eq 3 ] || fail "a peer was left out: $("$weft" peers)"
}
fails_in_two_stages $((done_alone + 1))
[[ $said == *'is kept'* ]] || fail "it says: $said"

"$weft" fetch "$job_number" -o "$work/kept.onnx" >"$work/fetch.log" 2>&1 || fail "the checkpoint cannot be fetched: $(cat "$work/fetch.log")"
"$weft" local "$work/job.yaml" --set "model=$work/kept.onnx" --set steps=3 --set "output=$work/on.onnx" --threads 1 >"$work/on.log" 2>&1 ||
  fail "what was fetched is of no use: $(cat "$work/on.log")"
echo "ok: the checkpoint was fetched and is finite"

# The last of 72 samples, which come in the order of the file, 16 a step: in steps 5, 9, 14, 18, 23, ...
take_model resnet_small
"$poison" "$work/data.npz" image 71 1e30
sets=(--set steps=120 --set "optimizer={type: adamw, learning_rate: 1e-3}" --set schedule=null --set clip_norm=null)
alone 7
fails_in_two_stages 5
"$poison" "$work/data.npz" image 71 nan
alone 2
grep -q "column 'image' holds nan in row 71" "$work/local.log" || fail "$(cat "$work/local.log")"
jobs_before=$("$weft" jobs --format json | wc -l)
status=0
"$weft" submit "$work/job.yaml" "${sets[@]}" >"$work/refused.log" 2>&1 || status=$?
[ "$status" -eq 2 ] && grep -q "in row 71" "$work/refused.log" || fail "weft submit ended with status $status: $(cat "$work/refused.log")"
[ "$("$weft" jobs --format json | wc -l)" -eq "$jobs_before" ] || fail "a job was made of it"
echo "ok: refused: $(tail -n 1 "$work/local.log")"
sets+=(--set on_divergence=skip)
alone 0
grep '"skipped":true' "$work/local.json" | field step | tr '\n' ' ' >"$work/skipped"
[ "$(cut -d' ' -f1-4 "$work/skipped")" = "5 9 14 18" ] || fail "skipped were $(cat "$work/skipped")"
[ "$(grep -c '"skipped":true' "$work/local.json")" = "$(grep -c '"loss":null' "$work/local.json")" ] || fail "a step has no loss, and was not skipped"
for kills in '' 1; do
  submit_job "$work/job.yaml" "${sets[@]}" --set placement.stages=2 --set "output=$work/out.onnx"
  if [ -n "$kills" ]; then
    wait_for_step 1
    victim=$(active_peers | head -n 1)
    wait_for_step 10
    lose_peer "$victim"
  fi
  finish_job
  [ "$RESULT" = completed ] || fail "the job ended otherwise: $LINE"
  steps_are_whole 120
  "$weft" logs "$job_number" --format json | grep '"skipped":true' | field step | tr '\n' ' ' | cmp -s - "$work/skipped" || fail "other steps were skipped than alone"
  [ -z "$kills" ] || [ "$("$weft" status "$job_number" --format json | field recoveries)" = 1 ] || fail "the loss went unnoticed"
  same_file "skipping, in two stages${kills:+, one of them killed}" "$work/local.onnx" "$work/out.onnx"
done
