#!/usr/bin/env bash
# A replica that is lost in the middle of a round costs what it made of that, and nobody else anything: the others end the
# round without it, and its steps are made again by those who go on. Twice. The record says it, and `weft local --replay` makes the same bytes.
# Then the same where rounds overlap, each about half of the model: the lost one has no part in the round before, either.
source "$(dirname "$0")/cluster.sh"
if is_sanitized; then echo "skipped: what is left of a round is too short there" >&2; exit 77; fi
cluster_begin
# A small model, for every step is made again; and so many steps a round that there is time to be in the middle of one. Both
# losses take ten rounds of one replica, wherever the time goes: the run cannot end before them.
take_model gpt3
job=$work/job.yaml
every=100
steps=$((13 * every))
common=(--set batch_size=4 --set microbatch_size=2 --set checkpoint=null --set evaluate_every=0
      --set steps=$steps --set 'replicas={min: 2, max: 3}' --set placement.stages=1)

start_broker --lease 3s
for peer in a b c d e f; do start_peer "$peer" --device cpu:1 --listen 127.0.0.1:0; done
wait_for_peers a b c d e f
# Of so many rounds a lost one's steps are made again.
lose_two() {
  local without=$1 name=$2 begun=0
  local again=$((without * every)) record=$work/$name.rounds.jsonl
  submit_job "$job" "${sets[@]}" --set "output=$work/$name.onnx"
  for loss in 1 2; do
    # In the middle of a round: each has made about half of its steps.
    wait_for_step $((begun + 3 * every + 3 * every / 2))
    lose_peer "$(one_of $(active_peers))"
    wait_for_event 'the others end their round without replica'
    [[ $LINE == *"; $again steps are done again, and no other's"* ]] || fail "of one replica $again steps are done again: $LINE"
    wait_for_event 'without those that were lost, after step'
    [[ $LINE =~ going\ on\ from\ the\ [a-z]+\ of\ step\ ([0-9]+) ]] || fail "it does not say where it goes on: $LINE"
    [ "${BASH_REMATCH[1]}" = $((begun + 6 * every - again)) ] || fail "two rounds of the others did not count: $LINE"
    begun=${BASH_REMATCH[1]}
    wait_for_recovery
  done
  finish_job
  made=$(steps_of_record "$record")
  [ "$made" = "$steps" ] || fail "the record has $made steps of $steps"
  [ "$(grep -c '"left_out":' "$record")" = 2 ] || fail "the record does not say twice who was left out"
  grep -q '"taken":' "$record" || fail "the record does not say whose samples were taken"
  "$weft" local "$job" "${sets[@]}" --replay "$record" --threads 1 --set "output=$work/local.onnx" >"$work/local.log"
  same_file "3 replicas, of which two were lost in the middle of a round" "$work/local.onnx" "$work/$name.onnx"
}
sets=("${common[@]}" --set "sync={every: $every, codec: \"topk:0.05:int8\"}")
lose_two 1 out
for peer in g h; do start_peer "$peer" --device cpu:1 --listen 127.0.0.1:0; done
wait_for_peers g h
sets=("${common[@]}" --set "sync={every: $((2 * every)), codec: \"topk:0.05:int8\", overlap: true, fragments: 2}")
lose_two 2 overlap
[ "$(grep -c '"absent":' "$work/overlap.rounds.jsonl")" = 4 ] || fail "the record does not say who had no part in which rounds"
[ "$(grep -c '"void_before":' "$work/overlap.rounds.jsonl")" = 2 ] || fail "the record does not say which rounds had counted less"
echo "leave_out: the same"
