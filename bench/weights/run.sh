#!/usr/bin/env bash
# What published weights on a machine save (`--weights`): a GPT-2 small in float32, as an exporter writes it, of which the machines
# have the published bfloat16 weights, or not. A step of adapters in two stages, each peer's line carrying RATE both ways. Each row:
# what went to the broker, what of the weights the peers fetched, and the seconds from the assignment to the first step.
#   bench/weights/run.sh     5 minutes on two cores
# RATE (50Mbit) of each line; SIZE: other options of bench/adapters/make_gpt.py, as "--layers 1 --width 64 --heads 2";
# SETS: keys of the job, as "base.store=int4 base.block=64"; CUT=1: the model has queries, keys and values by themselves,
# and who submits says `--base`
source "$(dirname "$0")/../../tests/e2e/cluster.sh"
rate=${RATE:-50Mbit}
cluster_begin
# shellcheck disable=SC2086
/usr/bin/python3 bench/adapters/make_gpt.py "$work" --published --steps 1 --batch 1 ${CUT:+--cut} ${SIZE:-}
more=(${CUT:+--base "$work/published"})
for set in ${SETS:-}; do more+=(--set "$set"); done
cat >"$work/lines.yaml" <<YAML
devices:
  - {name: a, type: gtx1080ti, region: ra, uplink: $rate, downlink: $rate}
  - {name: b, type: gtx1080ti, region: rb, uplink: $rate, downlink: $rate}
regions:
  within: {round_trip_ms: 1, bandwidth: 1Gbit}
  between:
    - {from: ra, to: rb, round_trip_ms: 20, bandwidth: 1Gbit}
YAML
echo "model.onnx: $(($(stat -c %s "$work/model.onnx") >> 20)) MiB; published: $(($(stat -c %s "$work/published/model.safetensors") >> 20)) MiB"
row() { printf '%-34s %14s %14s %10s\n' "$@"; }
# Bytes that its stage has, and those among them that it read.
stage_of() {
  sed -n 's/.* stage_weights run=.* bytes=\([0-9]*\) of=\([0-9]*\)$/\2 \1/p' "$work/$1.log" | tail -n 1 | grep . || echo 'all 0'
}
measure() {  # measure WHAT NAME [--weights of the broker] -- [--weights of the peers]
  local what=$1 name=$2 sent peer of_broker=(); shift 2
  while [ "$1" != -- ]; do of_broker+=("$1"); shift; done
  shift
  rm -rf "$work/broker" "$work"/peer-* "$work"/[ab].log "$work/broker.log"
  unset BROKER WEFT_TOKEN
  start_broker --links assume "${of_broker[@]}"
  [ ${#of_broker[@]} = 0 ] || wait_for_log "$work/broker.log" 'weights_indexed ' 600
  for peer in a b; do
    start_peer "$peer" --device cpu:1 --listen 127.0.0.1:0 --emulate "$work/lines.yaml" --region "r$peer" --as "$peer" "$@"
    [ $# = 0 ] || wait_for_log "$work/$peer.log" 'weights_indexed ' 600
  done
  "$weft" submit "$work/lora.yaml" --set placement.stages=2 "${more[@]}" --set "output=$work/$name.onnx" >"$work/$name.log" 2>&1 ||
    fail "$what: $(cat "$work/$name.log")"
  sent=$(sed -n 's/^sent \([0-9.]* [KMGi]*B\) .*/\1/p' "$work/$name.log")
  row "$what" "$sent" "$({ stage_of a; stage_of b; } | awk '$1 == "all" { none = 1 } { of += $1; read += $2 } END { if (none) print "all"; else printf "%.1f MiB", (of - read) / 1048576 }')" "$(seconds_between_states loading running)"
  for peer in a b; do lose_peer "$peer"; done
  end_process TERM "$broker_pid"
}
row 'who has the weights' 'sent to broker' 'peers fetched' 'seconds'
measure nobody none --
measure 'the peers' peers -- --weights "$work/published"
measure 'the broker and the peers' both --weights "$work/published" -- --weights "$work/published"
same_file "with published weights and without" "$work/none.onnx" "$work/both.onnx"
