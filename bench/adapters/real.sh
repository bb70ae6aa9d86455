#!/usr/bin/env bash
# What adapters learn on other people's machines, with texts that people wrote. GPT tiny learns one text on one machine. Then
# it is tuned on another: by adapters and whole, on one machine and on three peers whose lines carry RATE, compressed as weft
# chooses. Each row: the loss of what was held out, steps a second, what all peers sent, how much memory what is trained takes.
#   bench/adapters/real.sh FIRST SECOND     the texts; 12 minutes on two cores
# RATE (20Mbit) of each line, LINKS (measure) as of `weft broker`, BASE (800) steps of the first text (half of it), STEPS (300) of the second.
first=$(realpath "$1") second=$(realpath "$2")
source "$(dirname "$0")/../../tests/e2e/cluster.sh"
rate=${RATE:-20Mbit} base=${BASE:-800} steps=${STEPS:-300}
cluster_begin
head -c $(($(wc -c <"$first") / 2)) "$first" >"$work/first.txt"
cat >"$work/lines.yaml" <<YAML
devices:
  - {name: a, type: gtx1080ti, region: ra, uplink: $rate, downlink: $rate}
  - {name: b, type: gtx1080ti, region: rb, uplink: $rate, downlink: $rate}
  - {name: c, type: gtx1080ti, region: rc, uplink: $rate, downlink: $rate}
regions:
  within: {round_trip_ms: 1, bandwidth: 1Gbit}
  between:
    - {from: ra, to: rb, round_trip_ms: 30, bandwidth: 1Gbit}
    - {from: ra, to: rc, round_trip_ms: 30, bandwidth: 1Gbit}
    - {from: rb, to: rc, round_trip_ms: 30, bandwidth: 1Gbit}
YAML
job=examples/gpt/job.yaml
"$weft" local "$job" --set "data.train.path=$work/first.txt" --set "steps=$base" --set evaluate_every=0 --set checkpoint=null \
  --set "output=$work/base.onnx" >"$work/base.log" 2>&1 || fail "the first text: $(cat "$work/base.log")"

targets='["*.c_attn.weight", "*.c_proj.weight", "*.c_fc.weight", "*.m_proj.weight"]'
tune=(--set "model=$work/base.onnx" --set "data.train.path=$second" --set "steps=$steps" --set evaluate_every=0 --set checkpoint=null
      --set schedule.warmup_steps=20 --set microbatch_size=4)
lora=(--set freeze=null --set "adapters={type: lora, rank: 8, alpha: 16, targets: $targets}" --set optimizer.learning_rate=5e-3)
row() { printf '%-26s %9s %10s %8s %14s %14s\n' "$@"; }
said() { sed -n "s/^$1: //p" "$2" | tail -n 1; }  # said WHAT LOG
state() { sed -n 's/^memory: \([0-9.]* [KMG]iB\) for weights.*/\1/p' "$1" | head -n 1; }
show() {  # show WHAT LOG SECONDS SENT
  local held; held=$(state "$2")
  row "$1" "$(said 'test loss' "$2")" "$(said 'test perplexity' "$2")" "$(awk -v n="$steps" -v s="$3" 'BEGIN { printf "%.1f", n / (s > 0 ? s : 1) }')" "$4" "${held:--}"
}
on_one() {  # on_one WHAT NAME [SETS]
  "$weft" local "$job" "${tune[@]}" "${@:3}" --threads 2 --set "output=$work/$2.onnx" >"$work/$2.log" 2>&1 || fail "$1: $(cat "$work/$2.log")"
  show "$1" "$work/$2.log" "$(said 'training seconds' "$work/$2.log")" -
}
on_three() {  # on_three WHAT NAME [SETS]: peers of its own, whose logs say at the end what they sent
  local name sent
  for name in a b c; do
    : >"$work/$name.log"
    start_peer "$name" --device cpu:1 --listen 127.0.0.1:0 --emulate "$work/lines.yaml" --region "r$name" --as "$name"
  done
  "$weft" submit "$job" "${tune[@]}" "${@:3}" --set placement.stages=3 --set 'compression={policy: auto}' --summary --set "output=$work/$2.onnx" \
    >"$work/$2.log" 2>&1 || fail "$1: $(cat "$work/$2.log")"
  for name in a b c; do wait_for_log "$work/$name.log" "so_far=\"$steps steps"; done
  sent=$(for name in a b c; do grep -o '[0-9.]* [KMGT]*i*B sent' "$work/$name.log" | tail -n 1; done |
    awk '{ unit = index("KMGT", substr($2, 1, 1)); sum += $1 * 1024 ^ unit } END { printf "%.0f MiB", sum / 1048576 }')
  for name in a b c; do lose_peer "$name"; rm -rf "$work/peer-$name"; done
  show "$1" "$work/$2.log" "$(seconds_between_states running finished)" "$sent"
}
row '' 'held out' perplexity steps/s 'peers sent' 'state'
"$weft" local "$job" "${tune[@]}" "${lora[@]}" --set steps=1 --set optimizer.learning_rate=1e-30 --set schedule=null --set "output=$work/none.onnx" \
  >"$work/none.log" 2>&1 || fail "before: $(cat "$work/none.log")"
row before "$(said 'test loss' "$work/none.log")" "$(said 'test perplexity' "$work/none.log")" - - -
start_broker --links "${LINKS:-measure}"
on_one 'adapters, one machine' lora "${lora[@]}"
on_three 'adapters, three peers' lora3 "${lora[@]}"
on_one 'whole, one machine' whole
on_three 'whole, three peers' whole3
