#!/usr/bin/env bash
# What a guest leaves to who sits before the machine: how fast the owner's own loop runs on every processor while a guest
# trains, and while it is paused, beside how fast it runs alone. In turn, ROUNDS times (default 5); prints medians of loops
# a second and their ratios to alone. Nothing else may run on the machine.
#   bench/guest.sh [ROUNDS [SECONDS]]        SECONDS of each measurement: 4
source "$(dirname "$0")/../tests/e2e/cluster.sh"
cluster_begin
rounds=${1:-5} length=${2:-4}
cp examples/gpt/job.yaml examples/gpt/model.onnx "$work/"
made_text 300000 >"$work/corpus.txt"
start_broker
start_peer guest --guest
wait_for_log "$work/guest.log" "info joined"
submit_job "$work/job.yaml" --set "data.train.path=$work/corpus.txt" --set steps=1000000 --set schedule=null --set evaluate_every=0 \
  --set data.train.validation=0
wait_for_step 2
cat "$work/events.pipe" >/dev/null &  # nobody reads the rest
# A loop that does nothing but count, one for each processor; prints how often all went round in a second.
owner() {
  local i count all=0 pids=()
  for ((i = 0; i < $(nproc); ++i)); do
    # shellcheck disable=SC2016
    awk -v length_s="$length" 'BEGIN { "date +%s.%N" | getline began; close("date +%s.%N")
      do { for (i = 0; i < 1000000; ++i) sum += i; ++rounds; "date +%s.%N" | getline now; close("date +%s.%N") } while (now - began < length_s)
      print rounds / (now - began) }' >"$work/owner.$i" &
    pids+=("$!")
  done
  wait "${pids[@]}"
  cat "$work"/owner.* | awk '{ all += $1 } END { print all }'
}
median() { sort -n | awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}'; }
: >"$work/beside"; : >"$work/paused"; : >"$work/alone"
visits=0
for ((round = 0; round < rounds; ++round)); do
  owner >>"$work/beside"
  "$weft" pause >/dev/null
  visits=$((visits + 1))
  until [ "$(grep -c "info away" "$work/guest.log")" -ge "$visits" ]; do sleep 0.1; done
  owner >>"$work/paused"
  kill -STOP "${peer_pid[guest]}"
  owner >>"$work/alone"
  kill -CONT "${peer_pid[guest]}"
  "$weft" pause --off >/dev/null
  until [ "$("$weft" status "$job_number" --format json | field state)" = running ]; do sleep 0.1; done
done
alone=$(median <"$work/alone")
for what in alone paused beside; do
  awk -v what="$what" -v rate="$(median <"$work/$what")" -v alone="$alone" -v rounds="$rounds" 'BEGIN {
    names["alone"] = "the owner alone (guest stopped)"; names["paused"] = "while the guest is paused"; names["beside"] = "while the guest trains"
    printf "%-34s %7.2f loops/s   ratio to alone %.3f   (median of %d)\n", names[what], rate, rate / alone, rounds }'
done
