#!/usr/bin/env bash
# Processes killed, frozen and killed again for real, at moments drawn from a seed, while a job runs in eight stages on
# ten peers: it goes on each time, no committed step is done again, and it ends in the bytes of `weft local`.
#   recovery.sh [--quick | --long] [--only PART] [--seed N]      parts: peers frozen many broker
source "$(dirname "$0")/cluster.sh"
kills=40 broker_kills=40 lease=10 only='' seed=$((EPOCHSECONDS % 32768))
while [ $# -gt 0 ]; do
  case $1 in
    --quick) kills=6 broker_kills=8 lease=3 ;;
    --long) kills=200 broker_kills=100 ;;
    --only) only=$2; shift ;;
    --seed) seed=$2; shift ;;
    *) echo "usage: recovery.sh [--quick | --long] [--only PART] [--seed N]" >&2; exit 2 ;;
  esac
  shift
done
RANDOM=$seed
echo "recovery: seed $seed"
cluster_begin
take_model gpt3
# So many steps that it ends when it is told to.
sets=(--set schedule=null --set steps=1000000 --set placement.stages=8)

broker_args=(--lease "${lease}s" --copy-rate 1Gbit)
"${STORE_WRITER:-build/release/store_writer}" past "$work/broker" 100000
next_name=1
add_peer() { start_peer "p$next_name" --device cpu:1 --listen 127.0.0.1:0; next_name=$((next_name + 1)); }
start_broker "${broker_args[@]}"
for _ in 1 2 3 4 5 6 7 8 9 10; do add_peer; done

begin() {
  submit_job "$work/job.yaml" "${sets[@]}"
  wait_for_step 5
  wait_for_pool 2
  began_at=$STEP
}
# Stops the job and compares what it learnt with one process that did as many steps undisturbed.
end_and_compare() {
  local steps
  "$weft" stop "$job_number" >/dev/null
  finish_job
  [ "$RESULT" = stopped ] || fail "the job ended otherwise: $LINE"
  steps=$(field steps <<<"$LINE")
  steps_are_whole "$steps"
  "$weft" fetch "$job_number" -o "$work/out.onnx" >/dev/null
  "$weft" local "$work/job.yaml" --set schedule=null --set "steps=$steps" --threads 1 --set "output=$work/local.onnx" --format json >/dev/null
  same_file "$1, $steps steps" "$work/local.onnx" "$work/out.onnx"
}
summary() {  # summary WHAT: of milliseconds on standard input
  sort -n | awk -v what="$1" '{ v[NR] = $1 } END { printf "%s: %d times, median %.2f s, p95 %.2f s, max %.2f s\n",
    what, NR, v[int((NR + 1) / 2)] / 1000, v[int(NR * 0.95 + 0.999)] / 1000, v[NR] / 1000 }'
}
part() { [ -z "$only" ] || [ "$only" = "$1" ]; }

# ---- F1: one peer after another is killed; another process takes its place in the pool.
if part peers; then
  begin
  : >"$work/times"
  for ((i = 1; i <= kills; ++i)); do
    wait_for_step $((STEP + RANDOM % 10))
    victim=$(one_of $(active_peers)) began=$(microseconds)
    lose_peer "$victim"
    wait_for_recovery
    echo $((($(microseconds) - began) / 1000)) >>"$work/times"
    add_peer
    wait_for_pool 2
  done
  summary "from a peer's end to the next committed step" <"$work/times"
  echo "ok: recovered from $kills of $kills kills"
  end_and_compare "after $kills kills of peers"
fi

# ---- F2: one that falls silent is given up, and rejoins when it wakes.
if part frozen; then
  begin
  victim=$(one_of $(active_peers)) began=$(microseconds)
  kill -STOP "${peer_pid[$victim]}"
  wait_for_recovery
  took=$((($(microseconds) - began) / 1000))
  echo "from a peer's freezing to the next committed step: $took ms, its lease is $lease s"
  [ "$took" -lt $((1000 * (lease + 10))) ] || fail "a frozen peer held its run up for $took ms"
  wait_for_step $((STEP + 5))
  kill -CONT "${peer_pid[$victim]}"
  wait_for_pool 2
  echo "ok: it is back in the pool"
  end_and_compare "after a freeze"
fi

# ---- F3: many at once. With as many spares the run goes on; with fewer it pauses, says so, and goes on when one joins.
if part many; then
  begin
  victims=($(active_peers | shuf -n 2 --random-source=<(yes "$seed")))
  began=$(microseconds)
  for victim in "${victims[@]}"; do kill -KILL "${peer_pid[$victim]}"; done
  for victim in "${victims[@]}"; do lose_peer "$victim"; done
  wait_for_recovery
  # The second loss may have been noticed after the first was recovered from.
  while [ "$(job_state)" != running ]; do next_event; done
  next_step
  echo "ok: two of eight at once, two spares: the next step after $((($(microseconds) - began) / 1000)) ms"
  add_peer; add_peer
  wait_for_pool 2

  victims=($(active_peers | shuf -n 3 --random-source=<(yes "$seed")))
  for victim in "${victims[@]}"; do kill -KILL "${peer_pid[$victim]}"; done
  for victim in "${victims[@]}"; do lose_peer "$victim"; done
  wait_for_event 'waits for peers: needs 8, 7 are free'
  "$weft" status "$job_number" | grep -q 'waits for peers: needs 8, 7 are free' || fail "weft status does not say what it waits for"
  "$weft" logs "$job_number" | grep -q 'waits for peers' || fail "weft logs does not say what it waits for"
  echo "ok: three of eight at once, two spares: it pauses and says that one peer is missing"
  began=$(microseconds)
  add_peer
  wait_for_recovery 60
  took=$((($(microseconds) - began) / 1000))
  echo "from starting the missing peer to the next committed step: $took ms"
  [ "$took" -lt 30000 ] || fail "it took $took ms to go on"
  add_peer; add_peer
  wait_for_pool 2
  end_and_compare "after two and three of eight at once"
fi

# ---- F4: the broker, whose database holds 100,000 events, is killed, at drawn moments and right after a committed step was seen, and started again.
if part broker; then
  begin
  : >"$work/times"
  for ((i = 1; i <= broker_kills; ++i)); do
    wait_for_step $((STEP + 1 + RANDOM % 4))
    # Every other time within the turn that follows a step: a commit may be under way.
    if ((i % 2)); then
      until=$(($(microseconds) + RANDOM % 20000))
      while [ "$(microseconds)" -lt "$until" ]; do :; done
    fi
    end_process KILL "$broker_pid"
    exec {broker_out}<&-
    began=$(microseconds)
    start_broker "${broker_args[@]}"
    "$weft" peers >/dev/null || fail "the broker does not answer"
    echo $((($(microseconds) - began) / 1000)) >>"$work/times"
    known=$("$weft" status "$job_number" --format json | field step)
    [ "$known" -ge "$STEP" ] || fail "step $STEP was committed, and after a restart the broker knows of $known"
    seen=$STEP
    next_step
    [ "$STEP" -eq $((seen + 1)) ] || fail "after step $seen came step $STEP"
  done
  summary "from starting the broker again to its first answer" <"$work/times"
  [ "$(sort -n "$work/times" | tail -1)" -le 2000 ] || fail "the broker took more than 2 s to serve again"
  recoveries=$("$weft" status "$job_number" --format json | field recoveries)
  echo "ok: $broker_kills of $broker_kills kills of the broker, the run was planned anew $recoveries times"
  end_and_compare "after $broker_kills kills of the broker"
fi
echo "recovery: all is well (seed $seed)"
