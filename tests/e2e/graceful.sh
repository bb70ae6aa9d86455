#!/usr/bin/env bash
# What is not a crash, with real processes: a peer that leaves politely, one that its owner pauses, one that sleeps and comes back under another
# address, two processes with one identity, a peer that becomes a hundred times slower, a broker whose disk is full. Each
# time the job goes on, no committed step is done again, and it ends in the bytes of `weft local`.
#   graceful.sh [--quick] [--only PART]      parts: drain pause sleeper twins slow full upgrade; --quick leaves "slow" out
# WEFT_BEFORE=PROGRAM adds the part "upgrade": a job begun by that older weft is finished by this one.
source "$(dirname "$0")/cluster.sh"
only='' lease=10 quick=''
while [ $# -gt 0 ]; do
  case $1 in
    --quick) lease=3 quick=1 ;;
    --only) only=$2; shift ;;
    *) echo "usage: graceful.sh [--quick] [--only PART]" >&2; exit 2 ;;
  esac
  shift
done
cluster_begin
take_model gpt3
job=$work/job.yaml sets=(--set schedule=null --set steps=1000000)
broker_args=(--lease "${lease}s" --copy-rate 1Gbit)
part() { [ -z "$only" ] || [ "$only" = "$1" ]; }

begin() {  # begin STAGES [ARGS]
  submit_job "$job" "${sets[@]}" --set "placement.stages=$1" "${@:2}"
  wait_for_step 5
}
end_and_compare() {  # end_and_compare WHAT [SOME STEPS ARE DONE AGAIN]
  local steps
  "$weft" stop "$job_number" >/dev/null
  finish_job
  [ "$RESULT" = stopped ] || fail "the job ended otherwise: $LINE"
  steps=$(field steps <<<"$LINE")
  [ -n "${2:-}" ] || steps_are_whole "$steps"
  "$weft" fetch "$job_number" -o "$work/out.onnx" >/dev/null
  "$weft" local "$job" "${sets[@]}" --set "steps=$steps" --threads 1 --set "output=$work/local.onnx" --format json >/dev/null
  same_file "$1, $steps steps" "$work/local.onnx" "$work/out.onnx"
}
peer() { start_peer "$1" --device cpu:1 --listen 127.0.0.1:0 "${@:2}"; }
all_peers_leave() {
  local name
  for name in "${!peer_pid[@]}"; do lose_peer "$name"; done
}

start_broker "${broker_args[@]}"

if part drain; then
  for name in a b c d; do peer "$name"; done
  begin 3
  wait_for_pool 1
  leaver=$(one_of $(active_peers))
  kill -INT "${peer_pid[$leaver]}"
  wait "${peer_pid[$leaver]}" || fail "$leaver did not leave with exit status 0 but $?"
  unset "peer_pid[$leaver]"
  echo "ok: $leaver was asked to leave, and left with exit status 0"
  wait_for_step $((STEP + 20))
  end_and_compare "after a departure"
  all_peers_leave
fi

# Its owner wants the machine for a while. The same process comes back, by itself when the time is over.
if part pause; then
  for name in a b c; do XDG_RUNTIME_DIR=$work/run-$name peer "$name"; done
  begin 2
  wait_for_pool 1
  paused=$(one_of $(active_peers))
  told=$(XDG_RUNTIME_DIR=$work/run-$paused "$weft" pause)
  [[ $told == "$paused: paused until"*"handed over first"* ]] || fail "weft pause said: $told"
  until peers_that_are active | grep -qvx "$paused" && ! peers_that_are active | grep -qx "$paused"; do next_step; done
  wait_for_log "$work/$paused.log" "info away"
  kill -0 "${peer_pid[$paused]}" || fail "$paused ended"
  told=$(XDG_RUNTIME_DIR=$work/run-$paused "$weft" pause --status)
  [[ $told == *"paused until"* ]] || fail "weft pause --status said: $told"
  XDG_RUNTIME_DIR=$work/run-$paused "$weft" pause 1s >/dev/null
  wait_for_log "$work/$paused.log" "info back"
  wait_for_pool 1
  echo "ok: $paused was paused, handed its stage over, and came back by itself"
  end_and_compare "after a pause"
  all_peers_leave
fi

# A laptop's lid: silent for longer than the lease; then it is there again, under the same identity and another address.
if part sleeper; then
  for name in a b c d; do peer "$name"; done
  begin 3
  wait_for_pool 1
  sleeper=$(one_of $(active_peers))
  kill -STOP "${peer_pid[$sleeper]}"
  wait_for_recovery
  lose_peer "$sleeper"
  peer "$sleeper"
  wait_for_pool 1
  [ "$(peers_that_are pool)" = "$sleeper" ] || fail "the pool is not $sleeper but $(peers_that_are pool)"
  victim=$(one_of $(active_peers))
  lose_peer "$victim"
  wait_for_recovery
  active_peers | grep -qx "$sleeper" || fail "$sleeper was not used again"
  echo "ok: $sleeper slept, came back under another address, and took $victim's place"
  end_and_compare "after a sleep and a loss"
  all_peers_leave
fi

if part twins; then
  for name in a b c; do peer "$name"; done
  begin 3
  if "$weft" join "$BROKER" --token "$PEER_TOKEN" --name twin --data-dir "$work/peer-a" --device cpu:1 >"$work/twin.log" 2>&1; then
    fail "two processes share a data directory"
  fi
  grep "own --data-dir" "$work/twin.log" || fail "it is not told what to do"
  # A copy of the identity: only the broker can tell.
  mkdir "$work/peer-copy" && cp -p "$work/peer-a/identity.pem" "$work/peer-copy/"
  start_peer copy --device cpu:1 --listen 127.0.0.1:0
  wait_for_log "$work/copy.log" "identity"
  echo "the copy is told: $LINE"
  [[ $LINE == *--data-dir* ]] || fail "it is not told what to do"
  wait_for_step $((STEP + 20))
  [ "$(active_peers | sort | tr '\n' ' ')" = "a b c " ] || fail "the first did not go on undisturbed: $(active_peers)"
  [ "$("$weft" status "$job_number" --format json | field recoveries)" = 0 ] || fail "the second disturbed the run"
  echo "ok: the second process with an identity is refused, and the first goes on"
  lose_peer a
  wait_for_recovery
  echo "ok: when the first is gone the second takes its place"
  end_and_compare "with two processes of one identity"
  all_peers_leave
fi

# SIGSTOP and SIGCONT in turn let a peer run for one part in a hundred of the time.
if [ -z "$quick" ] && part slow; then
  made_text 300000 >"$work/corpus.txt"
  gpt_job=$job gpt_sets=("${sets[@]}")
  cp examples/gpt/job.yaml examples/gpt/model.onnx "$work/" && mv "$work/job.yaml" "$work/slow.yaml"
  take_model gpt3
  cp examples/gpt/model.onnx "$work/large.onnx"
  job=$work/slow.yaml sets=(--set "model=$work/large.onnx" --set "data.train.path=$work/corpus.txt" --set schedule=null --set evaluate_every=0
    --set data.train.validation=0 --set batch_size=8 --set microbatch_size=4 --set steps=1000000)
  for name in a b c; do peer "$name"; done
  begin 2
  wait_for_pool 1
  # The peer of the first stage: it has nearly all of this model's work.
  slow=$("$weft" status "$job_number" --format json | sed 's/.*"stages"://' | field name) began=$(microseconds)
  throttle() {
    while kill -CONT "$1" 2>/dev/null; do
      sleep 0.002; kill -STOP "$1" 2>/dev/null || true; sleep 0.198
    done
  }
  throttle "${peer_pid[$slow]}" & throttle_pid=$!
  wait_for_recovery
  took=$((($(microseconds) - began) / 1000))
  echo "from a peer's falling to a hundredth of its speed to the next committed step without it: $took ms"
  ! active_peers | grep -qx "$slow" || fail "$slow still has a stage"
  [ "$took" -lt 30000 ] || fail "it took $took ms"
  "$weft" logs "$job_number" | grep -i slow || fail "weft logs does not say so"
  end_process KILL "$throttle_pid"
  kill -CONT "${peer_pid[$slow]}" 2>/dev/null || true
  wait_for_step $((STEP + 5))
  # A stage of more than 8 MiB is not copied after each step: the steps since the last copy are done again.
  end_and_compare "after a peer became slow" again
  job=$gpt_job sets=("${gpt_sets[@]}")
  all_peers_leave
fi

# A small disk is filled under the broker and emptied again: first to where uploads are refused, for they leave room for
# the records, then to the end. Needs no privilege but a user namespace.
if part full; then
  end_process TERM "$broker_pid"
  mv "$work/broker" "$work/broker-before"; mkdir "$work/broker"
  mv "$work/broker.log" "$work/broker-before.log"
  unset BROKER WEFT_TOKEN
  broker_under=(unshare --user --map-root-user --mount bash -c 'mount -t tmpfs -o size=128m tmpfs "$0/broker" && exec "$@"' "$work")
  start_broker "${broker_args[@]}"
  broker_under=()
  disk=/proc/$broker_pid/root$work/broker
  for name in a b c; do peer "$name"; done
  begin 3 --set checkpoint.steps=10
  fill() { dd if=/dev/zero of="$disk/$1" bs=1M status=none "${@:2}" 2>/dev/null; }
  fill some count=$(($(stat -f -c "%a * %S / 1048576" "$disk") - 32)) || fail "cannot fill the disk"
  wait_for_event '"event":"notice"'
  echo "the job's log says: $(field text <<<"$LINE")"
  wait_for_step $((STEP + 20))
  wait_for_log "$work/broker.log" "blob_refused"
  echo "the broker says: $LINE"
  echo "ok: the run goes on without copies and checkpoints"
  if fill rest; then fail "the disk is not full"; fi
  wait_for_log "$work/broker.log" "disk_full"
  echo "the broker says: $LINE"
  rm "$disk/some" "$disk/rest"
  wait_for_log "$work/broker.log" "disk_has_room_again"
  wait_for_step $((STEP + 20))
  wait_for_event '"event":"checkpoint"'
  echo "ok: it goes on once there is room, with checkpoints"
  end_and_compare "after a full disk"
  all_peers_leave
fi

if [ -n "${WEFT_BEFORE:-}" ] && part upgrade; then
  end_process TERM "$broker_pid"
  rm -rf "$work/broker" "$work/broker.log"
  unset BROKER WEFT_TOKEN
  now=$weft weft=$WEFT_BEFORE
  start_broker
  for name in a b c; do peer "$name"; done
  begin 3 --set checkpoint.steps=10
  wait_for_event '"event":"checkpoint"'
  all_peers_leave
  end_process KILL "$broker_pid"
  end_process KILL "$submit_pid"
  weft=$now
  start_broker "${broker_args[@]}"
  for name in a b c; do peer "$name"; done
  open_events
  before=$("$weft" logs "$job_number" --format json | wc -l)
  "$weft" logs "$job_number" --follow --format json >"$work/events.pipe" 2>>"$work/submit.log" &
  submit_pid=$!
  exec {events}<"$work/events.pipe"
  for ((i = 0; i < before; ++i)); do next_event; done
  wait_for_event '"state":"running"'
  next_step
  wait_for_step $((STEP + 20))
  "$weft" stop "$job_number" >/dev/null
  finish_job
  steps=$(field steps <<<"$LINE")
  "$weft" fetch "$job_number" -o "$work/out.onnx" >/dev/null
  "$weft" local "$job" "${sets[@]}" --set "steps=$steps" --threads 1 --set "output=$work/local.onnx" --format json >/dev/null
  same_file "a job begun by the weft before, $steps steps" "$work/local.onnx" "$work/out.onnx"
  all_peers_leave
fi
echo "graceful: all is well"
