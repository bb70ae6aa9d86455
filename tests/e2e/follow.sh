#!/usr/bin/env bash
# A peer joins a run over a line on which what the others have takes longer than a moment: they go on meanwhile, and it takes
# what they agree on until it has caught up; then it is a replica as they are. It is lost, and one of the
# others is while the next one fetches; the run goes on. The record says who made which steps, and `weft local --replay` makes the same bytes.
source "$(dirname "$0")/cluster.sh"
if is_sanitized; then echo "skipped: what a round takes is too long there" >&2; exit 77; fi
cluster_begin
text=$work/corpus.txt
made_text 100000 >"$text"
job=examples/gpt/job.yaml
every=100
sets=(--set "data.train.path=$text" --set batch_size=2 --set microbatch_size=2 --set schedule=null --set checkpoint=null
      --set evaluate_every=0 --set steps=20000 --set placement.stages=1 --set "replicas={min: 2}"
      --set "sync={every: $every, shares: auto, codec: int4${OVERLAP:+, overlap: true, settle_every: $OVERLAP}}")
{ echo "devices:"
  for name in a b c d; do echo "  - {name: $name, type: gtx1080ti, region: $name, uplink: 10Mbit, downlink: 10Mbit}"; done
  echo "regions:"
  echo "  within: {round_trip_ms: 1, bandwidth: 1Gbit}"
  echo "  between:"
  for pair in a,b a,c a,d b,c b,d c,d; do
    echo "    - {from: ${pair%,*}, to: ${pair#*,}, round_trip_ms: 20, bandwidth: 1Gbit}"
  done
} >"$work/lines.yaml"
join_home() { start_peer "$1" --device cpu:1 --listen 127.0.0.1:0 --emulate "$work/lines.yaml" --region "$1" --as "$1"; }
follows() {  # follows NAME REPLICAS: it joins, and the others go on without it for two rounds at least
  join_home "$1"
  wait_for_event "become $2 when they agree next" 60
  wait_for_event '"event":"plan"' 60
  [[ $LINE == *'once it has been given what the others have'* ]] || fail "$1 does not follow: $LINE"
  next_step
}

start_broker --lease 3s --copy-rate 2Mbit
join_home a
join_home b
wait_for_peers a b
submit_job "$job" "${sets[@]}" --set "output=$work/out.onnx"
wait_for_step $((2 * every))
follows c 3
began=$STEP
"$weft" status "$job_number" >"$work/status.txt"
grep -qE "^2 replicas, .*; 1 more fetches what they have" "$work/status.txt" ||
  { cat "$work/status.txt" >&2; fail "status does not show who fetches"; }
wait_for_event 'c: has what the others have, and takes part when they agree next' 120
wait_for_event '"event":"plan"' 60
[[ $LINE != *'once it has been given'* ]] || fail "c follows still: $LINE"
next_step
[ $((STEP - began)) -ge $every ] || fail "the others made $((STEP - began)) steps while c fetched"
wait_for_step $((STEP + 5 * every))  # a round of three
echo "c: the others made $((STEP - began)) steps while it fetched"

# One of the others is lost while somebody fetches, and what it was to give.
if [ "${1:-}" != --quick ]; then
  lose_peer c
  wait_for_event 'the others end their round without replica' 60
  wait_for_event '"event":"plan"' 60
  wait_for_recovery
  follows d 3
  wait_for_step $((STEP + 20))
  lose_peer a  # where it made most of a round, the run goes back to where that began
  wait_for_event '"event":"plan"' 60
  wait_for_recovery
  wait_for_event "has what the others have, and takes part when they agree next" 120
  wait_for_event '"event":"plan"' 60
  wait_for_step $((STEP + 2 * every))
fi
stop_job "$work/out.onnx"
record=$work/out.rounds.jsonl
made=$(steps_of_record "$record")
[ "$made" = "$STEPS" ] || fail "the record has $made steps of $STEPS"
grep -qE '"steps":\[[1-9][0-9]*,[1-9][0-9]*,0\]' "$record" || fail "the record has no round in which somebody followed"
grep -qE '"steps":\[[1-9][0-9]*,[1-9][0-9]*,[1-9][0-9]*\]' "$record" || fail "the record has no round of three"
sets+=(--set "steps=$STEPS")
"$weft" local "$job" "${sets[@]}" --replay "$record" --threads 1 --set "output=$work/local.onnx" >"$work/local.log"
same_file "a run that others joined while it went on, made again by its record, $STEPS steps" "$work/local.onnx" "$work/out.onnx"
echo "follow: the same"
