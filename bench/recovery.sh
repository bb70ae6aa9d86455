#!/usr/bin/env bash
# What a departure costs, and what being ready for it costs, on this machine: eight active peers and two spares as
# processes, one thread each, killed with SIGKILL; a model of about 1 MB of state a stage and one of about 30 MB (made by
# weft_bench_model: cmake --build build/release --target weft_bench_model).
#   bench/recovery.sh [KILLS [SECONDS [SIZES...]]]     default: 30 kills, 90 s of one kill every 15 s, both sizes
# COPIES=broker: copies go through the broker, and not straight to the spares. STAGES (8), ROUNDS (3) with and without
# copies, DEVICE (cpu:1; null:gtx1080ti computes nothing) and LINKS (measure; or assume) are for a quick look.
# Rates are steps a second between events of the job. Copying is "off" when its rate is so low that it never begins.
source "$(dirname "$0")/../tests/e2e/cluster.sh"
kills=${1:-30} disturbed=${2:-90}
sizes=("${@:3}"); [ ${#sizes[@]} -gt 0 ] || sizes=(1MB 30MB)
maker=${WEFT_BENCH_MODEL:-build/release/weft_bench_model}
stages=${STAGES:-8} rounds=${ROUNDS:-3} device=${DEVICE:-cpu:1}
RANDOM=7
cluster_begin
made_model_job <<YAML
data:
  train: {type: text, path: corpus.txt, sequence_length: 16, validation: 0}
steps: 1000000
checkpoint: {every: 60s}
YAML
next_name=1
add_peer() { start_peer "p$next_name" --device "$device" --memory 2GiB --listen 127.0.0.1:0; next_name=$((next_name + 1)); }
milliseconds() { echo $(($(microseconds) / 1000)); }
run_job() {
  submit_job "$work/job.yaml" --set "placement.stages=$stages"
  wait_for_step 10
}
# Bytes that the broker has received over the connections that are open.
received() { ss -tinH "sport = :${BROKER##*:}" | grep -o 'bytes_received:[0-9]*' | awk -F: '{ sum += $2 } END { print sum + 0 }'; }
# Over the next N steps: sets RATE (steps a second), RECEIVED (bytes a step).
undisturbed() {
  local from before began
  next_step
  from=$STEP began=$(milliseconds) before=$(received)
  wait_for_step $((STEP + $1))
  RATE=$(awk -v n=$((STEP - from)) -v t=$(($(milliseconds) - began)) 'BEGIN { printf "%.3f", 1000 * n / t }')
  RECEIVED=$((($(received) - before) / (STEP - from)))
}
fresh_cluster() {  # fresh_cluster RATE
  local name i
  [ -z "$submit_pid" ] || end_process KILL "$submit_pid"
  for name in "${!peer_pid[@]}"; do lose_peer "$name"; done
  [ -z "$broker_pid" ] || end_process KILL "$broker_pid"
  rm -rf "$work/broker" "$work"/peer-* "$work"/p*.log
  unset BROKER WEFT_TOKEN
  start_broker --links "${LINKS:-measure}" --copy-rate "$1" --copies "${COPIES:-direct}"
  for ((i = 0; i < stages + 2; ++i)); do add_peer; done
}
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
# The sum over all stages of the bytes that the last step sent to other stages.
link_bytes() { "$weft" status "$job_number" --format json | { grep -o '"bytes_sent":[0-9]*' || true; } | awk -F: '{ sum += $2 } END { print sum + 0 }'; }

measure() {  # measure SIZE WIDTH
  local size=$1 victim began i steps share
  "$maker" "$2" 8 16 "$work/model.onnx"
  : >"$work/on"; : >"$work/off"; : >"$work/on.bytes"; : >"$work/off.bytes"
  for ((i = 0; i < rounds; ++i)); do
    fresh_cluster 100Mbit; run_job; undisturbed 40; echo "$RATE" >>"$work/on"; echo "$RECEIVED" >>"$work/on.bytes"
    fresh_cluster none; run_job; undisturbed 40; echo "$RATE" >>"$work/off"; echo "$RECEIVED" >>"$work/off.bytes"
  done
  local on off copied sent
  on=$(median <"$work/on") off=$(median <"$work/off")
  copied=$(($(median <"$work/on.bytes") - $(median <"$work/off.bytes")))

  fresh_cluster 100Mbit; run_job
  wait_for_step $((STEP + 20))
  sent=$(link_bytes)
  : >"$work/times"; : >"$work/going"; : >"$work/again"
  for ((i = 1; i <= kills; ++i)); do
    wait_for_pool 2
    wait_for_step $((STEP + 2 + RANDOM % 40))
    victim=$(one_of $(active_peers)) began=$(milliseconds)
    lose_peer "$victim"
    wait_for_event 'going on after'
    echo $(($(milliseconds) - began)) >>"$work/going"
    next_step
    echo $(($(milliseconds) - began)) >>"$work/times"
    add_peer
  done
  grep -o '[0-9]* committed steps\? \(is\|are\) done again' "$work/events" | awk '{ print $1 }' >"$work/again"

  fresh_cluster 100Mbit; run_job
  local start end from=$STEP killed=0 next
  start=$(milliseconds) next=$((start + 15000))
  while end=$(milliseconds); [ $((end - start)) -lt $((disturbed * 1000)) ]; do
    if [ "$end" -ge "$next" ]; then
      lose_peer "$(one_of $(active_peers))"
      add_peer
      killed=$((killed + 1)) next=$((next + 15000))
    fi
    next_step
  done
  # Steps that were done again are counted once.
  steps=$((STEP - from))

  sort -n "$work/times" >"$work/sorted"
  paste -d' ' <(sort -n "$work/going") "$work/sorted" >"$work/both"
  awk -v size="$size" -v on="$on" -v off="$off" -v copied="$copied" -v sent="$sent" -v steps="$steps" -v killed="$killed" \
      -v t=$((end - start)) -v again="$(awk '{ s += $1; if ($1 > m) m = $1 } END { print s + 0, m + 0 }' "$work/again")" '
    function of(v) { return sprintf("median %.2f s, p95 %.2f s, max %.2f s", v[int((NR + 1) / 2)] / 1000, v[int(NR * 0.95 + 0.999)] / 1000, v[NR] / 1000) }
    { going[NR] = $1; new[NR] = $2; sum += $2 }
    END {
      split(again, a, " ")
      printf "state of a stage about %s, %d kills\n", size, NR
      printf "  from a kill to the first step again         %s\n", of(going)
      printf "  from a kill to the first new step           %s\n", of(new)
      printf "  committed steps done again                  %.2f a kill, at most %d\n", a[1] / NR, a[2]
      printf "  undisturbed                                 %.2f steps/s with copies, %.2f without: it costs %.1f%%\n", on, off, 100 * (1 - on / off)
      printf "  copied to the broker                        %.2f MB a step, %.0f%% of it and what stages send each other (%.2f MB)\n", copied / 1e6, 100 * copied / (copied + sent + 1), sent / 1e6
      lost = sum / NR / 1000 - 1 / on  # what is done again is within it
      printf "  goodput, one departure a peer-hour          %.2f%% of undisturbed (computed: a departure costs %.2f s, 8 an hour)\n", 100 * (1 - 8 * lost / 3600), lost
      printf "  goodput, a kill every 15 s                  %.1f%% of undisturbed (measured: %d kills, %d steps in %.0f s)\n", 100 * steps / (t / 1000) / on, killed, steps, t / 1000
    }' "$work/both"
}
for size in "${sizes[@]}"; do
  case $size in
    1MB) measure 1MB 290 ;;
    30MB) measure 30MB 1600 ;;
    *) echo "usage: bench/recovery.sh [KILLS [SECONDS [1MB] [30MB]]]" >&2; exit 2 ;;
  esac
done
