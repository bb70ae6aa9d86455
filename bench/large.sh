#!/usr/bin/env bash
# What a large model costs everybody: a job is submitted to a broker and three peers of 3 GiB, all with default settings.
# Prints seconds and peak resident memory (MiB) of the client, the broker, the process that plans and the peers.
#   bench/large.sh JOB [SUBMIT ARGS]
job=$(realpath "$1"); shift
source "$(dirname "$0")/../tests/e2e/cluster.sh"
cluster_begin
start_broker
for name in a b c; do start_peer $name --memory 3GiB --listen 127.0.0.1:0; done
for name in a b c; do wait_for_log "$work/$name.log" 'info joined' 300; done

declare -A peak=()
note() {  # note NAME PROCESS
  local status
  status=$(cat "/proc/$2/status" 2>/dev/null) || return 0
  local now; now=$(awk '/^VmHWM:/ { print int($2 / 1024) }' <<<"$status")
  [ "${now:-0}" -le "${peak[$1]:-0}" ] || peak[$1]=$now
}
begin=$(microseconds)
"$weft" submit "$job" --format json --set "output=$work/trained.onnx" "$@" >"$work/events" 2>>"$work/submit.log" &
submit_pid=$!
planning= planned= submitted= running=
seconds_since() { awk -v a="$1" -v b="$(microseconds)" 'BEGIN { printf "%.1f", (b - a) / 1e6 }'; }
# A small model's job is over before it has been looked at twice.
look_at_events() {
  [ -n "$submitted" ] || ! grep -q '"event":"submitted"' "$work/events" || { submitted=$(seconds_since "$begin"); planning=$(microseconds); }
  [ -n "$planned" ] || ! grep -q '"state":"loading"' "$work/events" || planned=$(seconds_since "$planning")
  [ -n "$running" ] || ! grep -q '"state":"running"' "$work/events" || running=$(seconds_since "$planning")
}
while kill -0 "$submit_pid" 2>/dev/null; do
  note client "$submit_pid"
  note broker "$broker_pid"
  for worker in $(pgrep -P "$broker_pid" || true); do note plan-worker "$worker"; done
  for name in a b c; do note "$name" "${peer_pid[$name]}"; done
  look_at_events
  sleep 0.1
done
look_at_events
wait "$submit_pid" || fail "weft submit ended with status $?: $(tail -n 2 "$work/events")"
echo "seconds: submitted after $submitted, planned in $planned, running after ${running} more, all in $(seconds_since "$begin")"
for name in client broker plan-worker a b c; do echo "$name: at most ${peak[$name]:-0} MiB resident"; done
grep -h '"plan' "$work/events" | head -c 2000; echo
ls -l "$work"/trained*
for file in "$work"/trained.onnx "$work"/trained.onnx.data; do [ ! -e "$file" ] || sha256sum "$file"; done
