#!/usr/bin/env bash
# What a job that asks for no replicas costs with one weft and with another, as one from before there were any and one of today:
# GPT tiny by `weft local` on two threads, and by two peers, each on a core of its own, in turns. Medians of a step's seconds,
# the most memory that a process took, and the bytes that went over loopback in a whole run of the two, whose cut is the same.
#   bench/replicas/unused.sh OLD NEW [ROUNDS]          3; as root, for it counts in a network namespace of its own
# STEPS (60): of each run.
old=$(realpath "${1:?OLD}") new=$(realpath "${2:?NEW}") rounds=${3:-3}
if [ -z "${WEFT_UNUSED_INSIDE:-}" ]; then
  WEFT_UNUSED_INSIDE=1 exec unshare --net bash -c 'ip link set lo up && exec "$@"' - "$0" "$old" "$new" "$rounds"
fi
source "$(dirname "$0")/../../tests/e2e/cluster.sh"
cluster_begin
made_text 300000 >"$work/corpus.txt"
run=(examples/gpt/job.yaml --set "data.train.path=$work/corpus.txt" --set "steps=${STEPS:-60}" --set evaluate_every=0 --set checkpoint=null)

seconds_of() {  # of each step after the fifth
  awk '/"event": ?"step"/ { match($0, /"seconds": ?[0-9.e+-]+/); t = substr($0, RSTART, RLENGTH); sub(/.*: ?/, "", t); if (++n > 5) print t }' "$1"
}
median() { sort -g | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }
most_mib() { for pid in "$@"; do awk '/VmHWM/ { print $2 / 1024 }' "/proc/$pid/status"; done | sort -g | tail -n 1; }
sent() { awk '$1 == "lo:" { print $10 }' /proc/net/dev; }

for ((round = 0; round < rounds; ++round)); do
  for which in old new; do
    weft=${!which}
    /usr/bin/time -f %M -o "$work/kilobytes" "$weft" local "${run[@]}" --threads 2 --set "output=$work/$which.onnx" --format json >"$work/alone.json"
    seconds_of "$work/alone.json" >>"$work/$which.local"
    awk '{ print $1 / 1024 }' "$work/kilobytes" >>"$work/$which.local.mib"
    before=$(sent)
    start_broker
    for core in 0 1; do
      start_peer "$which$round-$core" --device cpu:1 --listen 127.0.0.1:0
      taskset -a -p -c "$core" "${peer_pid[$which$round-$core]}" >/dev/null
    done
    for core in 0 1; do wait_for_log "$work/$which$round-$core.log" 'info joined'; done
    "$weft" submit "${run[@]}" --set placement.stages=2 --set placement.strategy=equal-ops --set "output=$work/two.onnx" --format json >"$work/two.json" 2>/dev/null
    seconds_of "$work/two.json" >>"$work/$which.two"
    most_mib "${peer_pid[@]}" >>"$work/$which.two.mib"
    for name in "${!peer_pid[@]}"; do lose_peer "$name"; done
    end_process KILL "$broker_pid"
    exec {broker_out}<&-
    rm -rf "$work/broker" "$work"/peer-*
    unset BROKER WEFT_TOKEN
    echo $((($(sent) - before) / 1024)) >>"$work/$which.kib"
  done
done
cmp "$work/old.onnx" "$work/new.onnx" || true
printf '%-26s %12s %12s %7s\n' what old new ratio
for what in 'local:a step, s, local' 'local.mib:MiB, local' 'two:a step, s, two peers' 'two.mib:MiB of a peer' 'kib:KiB sent, two peers'; do
  a=$(median <"$work/old.${what%%:*}") b=$(median <"$work/new.${what%%:*}")
  printf '%-26s %12s %12s %7s\n' "${what#*:}" "$a" "$b" "$(awk -v a="$a" -v b="$b" 'BEGIN { printf "%.3f", b / a }')"
done
