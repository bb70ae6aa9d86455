#!/usr/bin/env bash
# One step of adapters beside a large model of four bits (make_large.py): on three peers of one thread and 2 GiB each, on one
# machine. It prints seconds (until the broker has all, until the plan, from there to the first step, the step itself) and
# the largest memory of each process, beside what the plan said. What nobody trained stays in the model's file.
#   bench/adapters/large.sh     6.7 B parameters: 5 minutes on two cores, 20 GB of disk
# SIZE: options of make_large.py; MEMORY (2GiB) of each peer
source "$(dirname "$0")/../../tests/e2e/cluster.sh"
cluster_begin
# shellcheck disable=SC2086
/usr/bin/python3 bench/adapters/make_large.py "$work" ${SIZE:-}
echo "model: $(($(stat -c %s "$work/model.onnx.data") >> 20)) MiB beside $(($(stat -c %s "$work/model.onnx") >> 10)) KiB"
start_broker --lease 60s
for peer in a b c; do start_peer "$peer" --device cpu:1 --memory "${MEMORY:-2GiB}" --listen 127.0.0.1:0; done
wait_for_peers a b c
peak_of() { awk '/VmHWM/ { printf "%.0f", $2 / 1024 }' "/proc/$1/status" 2>/dev/null; }
seconds_between() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", (b - a) / 1e6 }'; }
began=$(microseconds) client=0 sent='' planned=''
"$weft" submit "$work/lora.yaml" --set placement.stages=3 --set "output={path: $work/out.onnx, base: link}" --format json >"$work/events" 2>"$work/submit.log" &
submit_pid=$!
while now=$(peak_of "$submit_pid") && [ -n "$now" ]; do
  client=$now
  if [ -z "$sent" ] && grep -q '"event":"submitted"' "$work/events"; then sent=$(microseconds); fi
  if [ -z "$planned" ] && grep -q '"event":"plan"' "$work/events"; then planned=$(microseconds); fi
  sleep 0.1
done
wait "$submit_pid" || fail "submit: $(cat "$work/submit.log")"
step=$(grep '"event":"step"' "$work/events" | head -n 1 | field seconds)
echo "submitted in $(seconds_between "$began" "$sent") s, planned $(seconds_between "$sent" "$planned") s later; the step took $(printf %.1f "$step") s"
echo "written: $(($(stat -c %s "$work/out.onnx.data") >> 20)) MiB beside the model's own data"
printf '%-8s %10s %10s\n' who 'peak MiB' 'plan MiB'
printf '%-8s %10s %10s\n' client "$client" -
printf '%-8s %10s %10s\n' broker "$(peak_of "$broker_pid")" -
for peer in a b c; do
  plan=$(grep '"event":"plan"' "$work/events" | head -n 1 | grep -oE "stage [123] of 3 on $peer: [^\"]*" |
    grep -oE '[0-9.]+ [KMG]iB of [0-9.]+ [KMG]iB' | head -n 1 |
    awk '{ printf "%.0f", $1 * ($2 == "GiB" ? 1024 : $2 == "KiB" ? 1 / 1024 : 1) }' || true)
  printf '%-8s %10s %10s\n' "$peer" "$(peak_of "${peer_pid[$peer]}")" "${plan:-0}"
done
