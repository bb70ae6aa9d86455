#!/usr/bin/env bash
# A model that peers serve in a ring of three: the process of a stage is killed in the middle of a text, a spare takes its
# place, and the text goes on; it is the one that is drawn where nobody is killed.
#   serve_failover.sh [--quick]
source "$(dirname "$0")/cluster.sh"
kills=20
[ "${1:-}" != --quick ] || kills=4
cluster_begin
cp examples/gpt/model.onnx "$work/model.onnx"
cat >"$work/job.yaml" <<YAML
format: 1
model: model.onnx
task: serve
serve: {name: gpt}
placement: {stages: 3}
YAML

start_broker_with_door
next_name=1
add_peer() { start_peer "p$next_name" --device cpu:1 --listen 127.0.0.1:0; next_name=$((next_name + 1)); }
for _ in 1 2 3 4; do add_peer; done
submit_job "$work/job.yaml"
wait_for_event '"state":"running"'
wait_for_event '"event":"status"'
generate() { "$weft" generate --url "http://$url/v1" --prompt 'Once upon' --length 110 --seed "$1"; }
stage_peers() { grep -o '"stages":.*' <<<"$1" | grep -o '"name":"[^"]*"' | cut -d'"' -f4; }
mapfile -t stages < <(stage_peers "$LINE")
[ "${#stages[@]}" = 3 ] || fail "the stages are not told: $LINE"

# Of peers that a notice names: "stage 2 goes from p2 to p4".
wait_for_successor() {  # wait_for_successor SEAT
  wait_for_event "stage $(($1 + 1)) goes from"
  stages[$1]=$(sed -n 's/.* goes from [^ ]* to \([^" ]*\)".*/\1/p' <<<"$LINE")
  wait_for_event '"state":"running"'
}

: >"$work/times"
for ((i = 0; i < kills; ++i)); do
  until [ "$(peers_that_are pool | wc -l)" -ge 1 ]; do wait_for_event '"event":"status"'; done
  seat=$((i % 3))
  generate "$i" >"$work/wanted"
  exec {text}< <(generate "$i")
  IFS= read -r -N 8 -t $((60 * slower)) begin <&"$text" || fail "no text comes"
  began=$(microseconds)
  lose_peer "${stages[seat]}"
  { printf %s "$begin"; cat <&"$text"; } >"$work/text"
  took=$((($(microseconds) - began) / 1000))
  echo "stage $((seat + 1)): $took ms"
  echo "$took" >>"$work/times"
  exec {text}<&-
  cmp -s "$work/wanted" "$work/text" || fail "after kill $i, of stage $((seat + 1)): another text"
  wait_for_successor "$seat"
  add_peer
done
sort -n "$work/times" | awk '{ v[NR] = $1 } END { printf "from the end of a stage to the end of the text: median %.2f s, p95 %.2f s, max %.2f s\n",
  v[int((NR + 1) / 2)] / 1000, v[int(NR * 0.95 + 0.999)] / 1000, v[NR] / 1000 }'
[ "$(grep -c stage_taken_over <(cat "$work"/p*.log))" -ge $((kills)) ] || fail "stages that stayed were not taken over"
echo "ok: $kills kills, each text the same"
