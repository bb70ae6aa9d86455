#!/usr/bin/env bash
# What a guest leaves to who sits before the machine: how fast the owner's own loop runs on every processor while a guest
# trains, and while it is paused, beside how fast it runs while the guest's process is stopped. In turn, ROUNDS times
# (default 10), so that what else goes on at the machine is in both; prints the medians of the ratios, and their quartiles.
#   bench/guest.sh [ROUNDS [MILLISECONDS]]        MILLISECONDS of each measurement: 1000; less than a lease
source "$(dirname "$0")/../tests/e2e/cluster.sh"
cluster_begin
rounds=${1:-10} length=${2:-1000}
cp examples/gpt/job.yaml examples/gpt/model.onnx "$work/"
made_text 300000 >"$work/corpus.txt"
start_broker
start_peer guest --guest
wait_for_log "$work/guest.log" "info joined"
submit_job "$work/job.yaml" --set "data.train.path=$work/corpus.txt" --set steps=1000000 --set schedule=null --set evaluate_every=0 \
  --set data.train.validation=0
wait_for_step 2
cat "$work/events.pipe" >/dev/null &  # nobody reads the rest
# A loop that does nothing but count, one for each processor; prints how often all went round.
turn_round() {
  local end=$(($(microseconds) + length * 1000)) turns=0 k
  while [ "${EPOCHREALTIME/[.,]/}" -lt "$end" ]; do
    for ((k = 0; k < 1000; ++k)); do :; done
    turns=$((turns + 1))
  done
  echo "$turns"
}
owner() {
  local i pids=()
  for ((i = 0; i < $(nproc); ++i)); do turn_round >"$work/owner.$i" & pids+=("$!"); done
  wait "${pids[@]}"
  cat "$work"/owner.* | awk '{ all += $1 } END { print all }'
}
guest_is_stopped() { kill -STOP "${peer_pid[guest]}"; }
guest_goes_on() { kill -CONT "${peer_pid[guest]}"; }
compare() {  # compare WHAT
  local i beside alone
  : >"$work/ratios"
  for ((i = 0; i < rounds; ++i)); do  # whoever is first is second the next time
    if ((i % 2)); then beside=$(owner); guest_is_stopped; alone=$(owner); guest_goes_on
    else guest_is_stopped; alone=$(owner); guest_goes_on; beside=$(owner); fi
    awk -v a="$alone" -v b="$beside" 'BEGIN { print b / a }' >>"$work/ratios"
  done
  sort -n "$work/ratios" | awk -v what="$1" '{ v[NR] = $1 } END {
    printf "the owner %-28s %.3f of the speed alone (quartiles %.3f to %.3f, %d pairs)\n", what, v[int((NR + 1) / 2)], v[int((NR + 3) / 4)], v[int((3 * NR + 3) / 4)], NR }'
}
compare "beside a guest that trains:"
"$weft" pause >/dev/null
wait_for_log "$work/guest.log" "info away" 600
compare "beside a paused guest:"
