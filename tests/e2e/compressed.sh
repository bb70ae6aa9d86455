#!/usr/bin/env bash
# Links that compress, with real processes: with each codec a run in two stages learns what one machine learns, and ends, after
# one of its peers was killed, in the bytes of the run in which nobody was.   compressed.sh [--quick]
source "$(dirname "$0")/cluster.sh"
codecs=(fp16 bf16 int8 int6 int5 int4 int3 int4z topk:0.1:fp16 topk:0.05:int8+int4 randomk:0.5:fp16)
[ "${1:-}" = --quick ] && codecs=(int8 topk:0.1:int8)
cluster_begin
"${WEFT_BENCH_MODEL:-build/release/weft_bench_model}" 256 2 32 "$work/model.onnx"
made_model_job <<YAML
data: {train: {type: text, path: corpus.txt, sequence_length: 32, validation: 0.1}}
evaluate_every: 10
steps: 30
YAML
steps=30
"$weft" local "$work/job.yaml" --threads 1 --set "output=$work/local.onnx" --format json >"$work/local.json"
final_loss() { grep '"event":"step"' "$1" | tail -n 1 | field loss; }

start_broker --lease 3s --copy-rate 1Gbit

# ---- Over slow lines: a job that says nothing is told what it could gain; `auto` hides the links and learns the same (the first
# twenty steps go 2% up and down). Copies of the state take the same uplink meanwhile: of a second run, whose copies are there
# already, steps take 0.285 s, dense 1.16. The lines stay slow beside the computing where a sanitizer slows that.
rate_of_lines=$((20 / slower))Mbit
cat >"$work/lines.yaml" <<YAML
devices:
  - {name: far, type: gtx1080ti, region: here, uplink: $rate_of_lines, downlink: $rate_of_lines}
  - {name: away, type: gtx1080ti, region: here, uplink: $rate_of_lines, downlink: $rate_of_lines}
regions: {within: {round_trip_ms: 40, bandwidth: 1Gbit}}
YAML
for name in far away; do
  start_peer "$name" --device cpu:1 --listen 127.0.0.1:0 --emulate "$work/lines.yaml" --region here --as "$name"
done
slow_run() {  # slow_run POLICY: its last loss and its steps a second
  submit_job examples/gpt/job.yaml --set "data.train.path=$work/corpus.txt" --set batch_size=16 --set microbatch_size=2 --set evaluate_every=0 \
    --set checkpoint=null --set schedule=null --set steps=20 --set placement.stages=2 --set "compression={policy: $1}" --set "output=$work/slow.onnx"
  wait_for_step 4
  local began; began=$(microseconds)
  finish_job
  loss=$(final_loss "$work/events") rate=$(awk -v us="$(($(microseconds) - began))" 'BEGIN { printf "%.2f", 16e6 / us }')
}
slow_run none
# Where computing is ten times slower than it is, lines matter less.
is_sanitized || grep -q 'compression: {policy: auto} would take' "$work/events" || fail "nobody said what auto would gain"
dense_loss=$loss dense_rate=$rate
slow_run auto
grep -q 'compressed as' "$work/events" || fail "auto compresses nothing over $rate_of_lines"
awk -v line="$rate_of_lines" -v d="$dense_loss" -v a="$loss" -v dr="$dense_rate" -v ar="$rate" \
  'BEGIN { printf "auto over %s: %.2f steps a second, dense %.2f: %.1f times as fast; loss %.4f, dense %.4f\n", line, ar, dr, ar / dr, a, d
           exit !(a < 1.05 * d && a > 0.95 * d) }' || fail "auto learns something else"
for name in far away; do lose_peer "$name"; done

for name in a b c; do start_peer "$name" --device cpu:1 --listen 127.0.0.1:0; done
next=1
# Cut by the number of ops: whatever the peers measure themselves at, the cut is the same, and with it what a codec rounds.
submit_with() { submit_job "$work/job.yaml" --set "placement={stages: 2, strategy: equal-ops-joining}" --set "compression={policy: uniform, codec: $1}" --set "output=$2"; }
for codec in "${codecs[@]}"; do
  submit_with "$codec" "$work/calm.onnx"
  finish_job
  grep -q "compressed as $codec" "$work/events" || fail "$codec: the plan does not say that links are compressed"
  grep '"event":"evaluation"' "$work/events" | grep -qF "\"codecs\":\"$codec\"" || fail "$codec: an evaluation does not say over which links it ran"
  cp "$work/events" "$work/calm.events"
  # What keeps a part of the numbers alone learns far more slowly, and by how much depends on the text; but it learns.
  case $codec in topk:*:fp16 | topk:*:int8 | randomk:*) most=1.7 ;; *) most=1.3 ;; esac
  awk -v what="$codec" -v one="$(final_loss "$work/local.json")" -v other="$(final_loss "$work/events")" -v most=$most \
    'BEGIN { printf "%s: loss %.4f after thirty steps, of one machine %.4f\n", what, other, one; exit !(other < most * one && other > 0.8 * one) }' ||
    fail "$codec: it learns something else"
  [ "$codec" = int8 ] && grep -q "$(final_loss "$work/local.json")" <(final_loss "$work/events") && fail "int8: nothing was encoded"

  submit_with "$codec" "$work/lost.onnx"
  wait_for_step 5
  mapfile -t victims < <(active_peers)
  lose_peer "$(one_of "${victims[@]}")"
  wait_for_recovery
  finish_job
  steps_are_whole "$steps"
  same_file "$codec, a peer lost" "$work/calm.onnx" "$work/lost.onnx"
  start_peer "again-$next" --device cpu:1 --listen 127.0.0.1:0
  next=$((next + 1))
done

# ---- What cannot be is said before anything starts.
if "$weft" submit "$work/job.yaml" --set "compression={policy: uniform, codec: int7}" 2>"$work/refused.log"; then fail "int7 was taken"; fi
grep -q int4 "$work/refused.log" || fail "the refusal does not name what there is: $(cat "$work/refused.log")"
echo "compressed: the same bytes through a loss"
