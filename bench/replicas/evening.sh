#!/usr/bin/env bash
# What an evening of other people's machines is worth: homes come and go by a table, some by Ctrl-C, some by closing a lid
# (SIGKILL), some come back; one stands still for a while (SIGSTOP). They train GPT tiny as replicas. Their devices compute
# nothing and take as long as DEVICE would; an hour of the table takes HOUR (60) seconds. What they make is compared with what
# the seconds in which they were there allow, at the pace of the first three. Then `weft local` computes the very run from
# its record, and one of six replicas that nobody leaves: how much worse is what was learned?
#   bench/replicas/evening.sh [TEXT]     a text to learn from; without one a made one, and nothing is computed
# RATE (20Mbit) of each line, EVERY (30), DEVICE (null:gtx1080ti/60). It takes 7 minutes, and with TEXT as long as 2 x 1,500
# steps a home and hour take `weft local`.
text=${1:-}
[ -z "$text" ] || text=$(realpath "$text")
DEVICE=${DEVICE:-null:gtx1080ti/60}
source "$(dirname "$0")/../../tests/e2e/cluster.sh"
source bench/replicas/homes.sh
hour=${HOUR:-60} rate=${RATE:-20Mbit}
# Minutes after six o'clock.
table='20 come 3
45 come 4
60 come 5
70 close 1
90 come 6
100 still 5
110 wake 5
120 close 4
122 come 7
130 come 8
150 come 1
180 come 9
195 leave 6
210 come 10
240 close 8
242 come 4
270 leave 0
285 leave 9
300 close 7
330 leave 3
360 end -'
cluster_begin
made_home_lines 11 "$rate"
[ -n "$text" ] || { text=$work/corpus.txt; made_text 400000 >"$text"; }

declare -A since=()  # of those that are there: when they joined, in microseconds
there=0              # microseconds, of all that have gone
come() {
  join_home "$1"
  wait_for_log "$work/home$1.log" 'info joined' 600  # other work may run on the machine
  since[$1]=$(microseconds)
}
gone() { there=$((there + $(microseconds) - since[$1])); unset "since[$1]"; }
close() { gone "$1"; lose_peer "home$1"; mv "$work/home$1.log" "$work/home$1.$RANDOM.log"; }
leave() {  # it goes when all have agreed: until then it is there, and trains
  kill -INT "${peer_pid[home$1]}"
  leaving[$1]=1
}
still() { gone "$1"; kill -STOP "${peer_pid[home$1]}"; }
wake() { kill -CONT "${peer_pid[home$1]}"; since[$1]=$(microseconds); }
end() { :; }
declare -A leaving=()
see_who_left() {
  local who
  for who in "${!leaving[@]}"; do
    kill -0 "${peer_pid[home$who]}" 2>/dev/null && continue
    gone "$who"
    wait "${peer_pid[home$who]}" || true
    unset "peer_pid[home$who]" "leaving[$who]"
  done
}

start_broker
for who in 0 1 2; do come "$who"; done
job=(examples/gpt/job.yaml --set "data.train.path=$text" --set 'replicas={min: 1}' --set placement.stages=1
     --set "sync={every: $every, codec: 'topk:0.02:int4'}" --set evaluate_every=0 --set checkpoint=null
     --set 'schedule={type: constant}')
submit_job "${job[@]}" --set steps=1000000 --set "output=$work/out.onnx"
wait_for_event '"event":"plan"' 300
wait_for_step 1
watch_samples 20
calm=$RATE
now=$(microseconds) first=$STEP began=$now
for who in "${!since[@]}"; do since[$who]=$now; done
while read -r minute what who; do
  until [ $(($(microseconds) - began)) -ge $((minute * hour * 1000000 / 60)) ]; do
    next_step
    see_who_left
  done
  "$what" "$who"
done <<<"$table"
now=$(microseconds)
last=$STEP
for who in "${!since[@]}"; do there=$((there + now - since[$who])); done
"$weft" stop "$job_number" >/dev/null
finish_job
grep -o '"text":"[^"]*\(become\|end their round\|wants to leave\)[^"]*"' "$work/events" | cut -d'"' -f4 | sed 's/: a step of the run.*//; s/; .*//' |
  sed 's/^/  /'
awk -v n=$(((last - first) * batch)) -v us=$((now - began)) -v there="$there" -v calm="$calm" 'BEGIN {
  printf "calm: %s samples/s of three homes; in the evening: %.1f samples/s over %.0f s\n", calm, n * 1e6 / us, us / 1e6
  printf "homes were there for %.0f s in all, and made %.3f of what they make when nobody comes or goes\n", there / 1e6, n / (there / 1e6 * calm / 3)
}'
[ -n "${1:-}" ] || exit 0
made=$(field steps <<<"$LINE")
cp "$work/out.rounds.jsonl" "$work/record.jsonl"
learn() {  # learn NAME ARGS...: the held-out loss at the end
  "$weft" local "${job[@]}" --set "evaluate_every=$made" --set "steps=$made" --threads 2 --format json --set "output=$work/$1.onnx" \
    "${@:2}" | grep '"event":"evaluation"' | tail -n 1 | grep -oE '"loss": ?[0-9.]+' | grep -oE '[0-9.]+'
}
evening=$(learn evening --replay "$work/record.jsonl")
alone=$(learn calm --set 'replicas={min: 6, max: 6}')
awk -v a="$evening" -v b="$alone" -v n="$made" 'BEGIN {
  printf "held-out loss after %d steps: %.4f of the evening, %.4f of six replicas that nobody leaves: %.3f\n", n, a, b, a / b }'
