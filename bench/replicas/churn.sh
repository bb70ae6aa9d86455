#!/usr/bin/env bash
# What a run keeps of its machines' time when they come and go: six homes train as replicas; in the middle of each of 20
# rounds one is killed, and another one joins in its place. A region and an emulated line for each; their devices compute
# nothing and take as long as TYPE would. What is counted are the steps of the run that are there at the end; what they are
# compared with is what one home makes when nobody goes, times the seconds that homes were there.
#   bench/replicas/churn.sh [RATE]        20Mbit
# HOMES (6) peers at a time; LOSSES (20), one each ROUNDS (1) rounds; DEVICE, WIDTH, LAYERS, LENGTH, BATCH and EVERY (30) as of
# speed.sh; OVERLAP (0): rounds overlap, and so many are between two after which all have the same weights; CODEC
# (topk:0.02:int4). SECONDS_CALM (40): how long nobody goes before. It takes 5 minutes.
rate=${1:-20Mbit}
source "$(dirname "$0")/../../tests/e2e/cluster.sh"
source bench/replicas/homes.sh
homes=${HOMES:-6} losses=${LOSSES:-20} rounds=${ROUNDS:-1} calm=${SECONDS_CALM:-40}
cluster_begin
made_home_job
made_home_lines $((homes + losses)) "$rate"

declare -A since=()  # of those that are there: when it had joined, in microseconds
there=0              # microseconds, of all that have gone
come() {
  join_home "$1"
  wait_for_log "$work/home$1.log" 'info joined'
  since[home$1]=$(microseconds)
}
go() {
  there=$((there + $(microseconds) - since[$1]))
  unset "since[$1]"
  lose_peer "$1"
}
start_broker
for ((i = 0; i < homes; ++i)); do come "$i"; done
overlap=${OVERLAP:-0} overlaps=
if [ "$overlap" -gt 0 ]; then overlaps=", overlap: true, settle_every: $overlap"; fi
submit_home_job --set 'replicas={min: 2}' --set "sync={every: $every, codec: '${CODEC:-topk:0.02:int4}'$overlaps}"
wait_for_event '"event":"plan"' 300
wait_for_step 1
watch_samples "$calm"
calm_rate=$RATE

now=$(microseconds) first=$STEP began=$now
for name in "${!since[@]}"; do since[$name]=$now; done
round_us=$(awk -v n=$((every * homes * batch)) -v r="$calm_rate" 'BEGIN { printf "%d", n * 1e6 / r }')
next=$homes
for ((loss = 0; loss < losses; ++loss)); do
  until=$(($(microseconds) + round_us * rounds))
  while [ "$(microseconds)" -lt "$until" ]; do next_step; done
  go "$(one_of $(active_peers))"
  come "$next"
  next=$((next + 1))
done
until=$(($(microseconds) + round_us))
while [ "$(microseconds)" -lt "$until" ]; do next_step; done
now=$(microseconds)
for name in "${!since[@]}"; do there=$((there + now - since[$name])); done
{ grep -o 'others end their round without replica' "$work/events" || true; } | wc -l | sed 's/$/ were left out of their round/'
{ grep -o 'had what it sent' "$work/events" || true; } | wc -l | sed 's/$/ were lost while all agreed/'
status=$("$weft" status "$job_number" --format json)
last=$(grep -oE '"step": ?[0-9]+' <<<"$status" | head -1 | grep -oE '[0-9]+')
awk -v n=$(((last - first) * batch)) -v us=$((now - began)) -v there="$there" -v calm="$calm_rate" -v homes="$homes" 'BEGIN {
  printf "calm: %s samples/s of %d homes; with losses: %.1f samples/s over %.0f s\n", calm, homes, n * 1e6 / us, us / 1e6
  printf "homes were there for %.0f s in all, and made %.3f of what they make when nobody goes\n", there / 1e6, n / (there / 1e6 * calm / homes)
}'
