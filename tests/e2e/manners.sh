#!/usr/bin/env bash
# A peer as a guest on somebody's machine, with real processes beside a /sys, a /proc, a logind and a GameMode that are
# played: each reason pauses it and is told, it comes back by itself, a machine that sleeps loses nothing, and the job ends
# in the bytes of `weft local`.
#   manners.sh [--quick] [--only PART]      parts: reasons pauses sleep; --quick has fewer pauses
source "$(dirname "$0")/cluster.sh"
only='' pauses=20 lease=10
while [ $# -gt 0 ]; do
  case $1 in
    --quick) pauses=4 lease=3 ;;
    --only) only=$2; shift ;;
    *) echo "usage: manners.sh [--quick] [--only PART]" >&2; exit 2 ;;
  esac
  shift
done
fake_bus=${WEFT_FAKE_BUS:-build/release/weft_fake_bus}
cluster_begin
take_model gpt3
job=$work/job.yaml sets=(--set schedule=null --set steps=1000000)
part() { [ -z "$only" ] || [ "$only" = "$1" ]; }

# ---- the machine of a peer, which is played

# Of a laptop on mains whose processor is cool.
make_machine() {  # make_machine NAME
  local sys=$work/machine-$1/sys/class
  mkdir -p "$sys/power_supply/AC" "$sys/power_supply/BAT0" "$sys/hwmon/hwmon0" "$work/machine-$1/proc/4711"
  echo Mains >"$sys/power_supply/AC/type"; echo 1 >"$sys/power_supply/AC/online"
  echo Battery >"$sys/power_supply/BAT0/type"; echo Charging >"$sys/power_supply/BAT0/status"
  echo coretemp >"$sys/hwmon/hwmon0/name"; echo 50000 >"$sys/hwmon/hwmon0/temp1_input"
  echo bash >"$work/machine-$1/proc/4711/comm"
}
say_to_bus() {  # say_to_bus WORDS; sets LINE
  echo "$*" >&"${bus[1]}"
  read -r -t 10 LINE <&"${bus[0]}" || fail "the bus does not answer"
}
# Why NAME shall keep away, or no more: unplugged, game, program, heat, in_use.
disturb() {  # disturb NAME REASON
  local machine=$work/machine-$1
  case $2 in
    unplugged) echo 0 >"$machine/sys/class/power_supply/AC/online" ;;
    program) echo steam >"$machine/proc/4711/comm" ;;
    heat) echo 91000 >"$machine/sys/class/hwmon/hwmon0/temp1_input" ;;
    game) say_to_bus games 1 ;;
    in_use) say_to_bus idle 0 ;;
  esac
}
leave_alone() {
  local machine=$work/machine-$1
  case $2 in
    unplugged) echo 1 >"$machine/sys/class/power_supply/AC/online" ;;
    program) echo bash >"$machine/proc/4711/comm" ;;
    heat) echo 50000 >"$machine/sys/class/hwmon/hwmon0/temp1_input" ;;
    game) say_to_bus games 0 ;;
    in_use) say_to_bus idle 1 ;;
  esac
}
declare -A told=([unplugged]="on battery" [program]="steam runs" [heat]="too hot: coretemp is at 91" [game]="a game runs" [in_use]="the machine is in use")

peer() {
  make_machine "$1"
  mkdir -p "$work/run-$1"
  WEFT_MACHINE_ROOT=$work/machine-$1 XDG_RUNTIME_DIR=$work/run-$1 start_peer "$1" --guest --device cpu:1 --listen 127.0.0.1:0 \
    --settle 1s --pause-for steam --pause-for gamemode --temperature 85 --idle 1s
}
status_of() { XDG_RUNTIME_DIR=$work/run-$1 "$weft" peer status; }
# Until the log of NAME has so many lines with the text.
wait_for_lines() {  # wait_for_lines NAME TEXT COUNT
  local log tail_pid seen=0
  [ -e "$work/$1.log" ] || : >>"$work/$1.log"  # who writes it may not have begun
  exec {log}< <(exec tail -n +1 -f "$work/$1.log")
  tail_pid=$!
  while [ "$seen" -lt "$3" ] && read -r -t $((60 * slower)) LINE <&"$log"; do [[ $LINE != *"$2"* ]] || seen=$((seen + 1)); done
  kill "$tail_pid" 2>/dev/null || true
  exec {log}<&-
  [ "$seen" -ge "$3" ] || fail "$1 does not say for the ${3}th time: $2"
}
declare -A visits=()
# Sets `took`, in milliseconds.
pause_by() {  # pause_by NAME REASON
  local began; began=$(microseconds)
  visits[$1]=$((${visits[$1]:-0} + 1))
  disturb "$1" "$2"
  wait_for_lines "$1" "info away" "${visits[$1]}"
  took=$((($(microseconds) - began) / 1000))
  [[ $LINE == *"${told[$2]}"* ]] || fail "$1 keeps away for another reason: $LINE"
}
come_back() {  # come_back NAME REASON
  leave_alone "$1" "$2"
  wait_for_lines "$1" "info back" "${visits[$1]}"
}

[ -x "$fake_bus" ] || { echo "skipped: there is no $fake_bus" >&2; exit 77; }
bus_folder=$(mktemp -d /tmp/weft-bus-XXXXXX)  # a socket's address is short
coproc bus { exec "$fake_bus" "$bus_folder/bus" 2>>"$work/bus.log"; }
bus_process=$bus_PID
end_of_bus() { { kill "$bus_process" && wait "$bus_process"; } 2>/dev/null || true; rm -rf "$bus_folder"; }
trap 'code=$?; end_of_bus; (exit "$code"); cluster_end' EXIT
read -r -t 10 LINE <&"${bus[0]}" || { echo "skipped: there is no libsystemd" >&2; exit 77; }
export DBUS_SYSTEM_BUS_ADDRESS=$LINE DBUS_SESSION_BUS_ADDRESS=$LINE
say_to_bus idle 1
say_to_bus games 0
start_broker --lease "${lease}s" --copy-rate 1Gbit

if part reasons; then
  peer a
  joined=1
  wait_for_lines a "info joined" $joined
  for reason in unplugged program heat game in_use; do
    pause_by a "$reason"
    echo "$reason: it has paused $took ms later, and says: $(status_of a)"
    [[ $(status_of a) == *"paused: ${told[$reason]}"* ]] || fail "weft peer status does not say why"
    "$weft" peers --format json | grep -q "\"state\": *\"paused\",\"reason\": *\"paused: ${told[$reason]}" || fail "the broker does not know why: $("$weft" peers)"
    come_back a "$reason"
    wait_for_lines a "info joined" $((++joined))  # it tells the broker why it pauses while it is there
  done
  [[ $(status_of a) == *"at work"* ]] || fail "weft peer status says: $(status_of a)"
  grep -q 'peer_drains.*paused: on battery' "$work/broker.log" || fail "the broker's log does not say why"
  echo "ok: each reason pauses, is told, and is over by itself"
  lose_peer a
  visits=()
  rm "$work/a.log"
fi

begin() {  # begin STAGES
  submit_job "$job" "${sets[@]}" --set "placement.stages=$1"
  wait_for_step 5
}
end_and_compare() {  # end_and_compare WHAT
  local steps
  "$weft" stop "$job_number" >/dev/null
  finish_job
  [ "$RESULT" = stopped ] || fail "the job ended otherwise: $LINE"
  steps=$(field steps <<<"$LINE")
  steps_are_whole "$steps"
  "$weft" fetch "$job_number" -o "$work/out.onnx" >/dev/null
  "$weft" local "$job" "${sets[@]}" --set "steps=$steps" --threads 1 --set "output=$work/local.onnx" --format json >/dev/null
  same_file "$1, $steps steps" "$work/local.onnx" "$work/out.onnx"
}

# Steps are committed that were not before now, whatever events have not been read.
run_goes_on() { wait_for_step $(($("$weft" status "$job_number" --format json | field step) + 5)); }

# A guest that works is disturbed, another one takes its stage; the bus is everybody's, so only what is a machine's own.
if part pauses; then
  for name in a b c; do peer "$name"; done
  begin 2
  reasons=(unplugged program heat) most=0
  for ((i = 0; i < pauses; ++i)); do
    wait_for_pool 1
    name=$(one_of $(active_peers)) reason=${reasons[i % 3]}
    pause_by "$name" "$reason"
    [ "$took" -le "$most" ] || most=$took
    next_step
    come_back "$name" "$reason"
  done
  echo "ok: $pauses pauses, the longest way to one took $most ms"
  end_and_compare "after $pauses pauses"
  for name in a b c; do lose_peer "$name"; rm "$work/$name.log"; done
  visits=()
fi

if part sleep; then
  for name in a b c; do peer "$name"; done
  begin 2
  wait_for_pool 1
  # Nobody said that it would sleep: the clocks tell it afterwards.
  sleeper=$(one_of $(active_peers))
  joined=$(grep -c "info joined" "$work/$sleeper.log")
  echo 3600 >"$work/machine-$sleeper/asleep"
  wait_for_lines "$sleeper" "info woke" 1
  wait_for_lines "$sleeper" "info joined" $((joined + 1))
  run_goes_on
  echo "ok: $sleeper woke, dialled anew, and the run goes on"
  # logind says so before: the work is handed over, and then the machine is let go.
  say_to_bus sleep 1
  for name in a b c; do wait_for_lines "$name" "about to sleep" 1; done
  for name in a b c; do wait_for_lines "$name" "info away" 1; done
  say_to_bus sleep 0
  for name in a b c; do wait_for_lines "$name" "info back" 1; done
  run_goes_on
  echo "ok: all slept after they had handed over, and the run goes on"
  end_and_compare "after sleeps"
fi
echo "manners: all is well"
