#!/usr/bin/env bash
# Peers with a cuda device, its kernels on the host's shim (tests/cuda/host_module.cc): two stages give the bytes of
# one; a device is lost in the middle of a step: its peer says so, leaves with exit code 8, a spare takes the stage
# over and the bytes are the same; and one that hangs is left, and comes back when it answers (half a minute, so not
# with --quick).   device_lost.sh [--quick]
source "$(dirname "$0")/cluster.sh"
cluster_begin
modules=${WEFT_HOST_MODULES:-$PWD/build/release/tests/cuda/modules}
[ -e "$modules/weft_backend_cuda.so" ] || fail "no module in $modules"
export WEFT_MODULES=$modules
take_model two_heads
steps=20
sets=(--set "steps=$steps" --set epochs=null)

"$weft" local "$work/job.yaml" "${sets[@]}" --backend cuda --set "output=$work/local.onnx" >"$work/local.log" 2>&1 ||
  fail "weft local --backend cuda: $(cat "$work/local.log")"
echo "ok: weft local --backend cuda, on the host's shim"

# Without the module, and with one that is none.
status=0; WEFT_MODULES=$work "$weft" local "$work/job.yaml" --backend cuda >"$work/none.log" 2>&1 || status=$?
[ "$status" = 3 ] && grep -q 'there is no weft_backend_cuda.so' "$work/none.log" || fail "without a module: status $status, $(cat "$work/none.log")"
echo "ok: without a module: exit code 3, and says what is missing"

start_broker --lease 3s
# The shim takes minutes to be measured: before a peer has joined its kernels compute nothing.
peer() {  # peer NAME [OPTION]: of the host's device
  WEFT_HOST_DEVICE=memory=268435456,works_when=$work/$1.works${2:+,$2} start_peer "$1" --device cuda --listen 127.0.0.1:0
  wait_for_log "$work/$1.log" 'info measured' 120
  : >"$work/$1.works"
}
peer one; peer two; peer three
submit_job "$work/job.yaml" "${sets[@]}" --set "placement={stages: 2}" --set "output=$work/whole.onnx"
finish_job
same_file "two stages" "$work/local.onnx" "$work/whole.onnx"

# Several devices of one machine: a peer each, that ends by itself; told to leave, both do.
for peer in one two three; do end_process TERM "${peer_pid[$peer]}"; unset "peer_pid[$peer]"; done
start_pair() {  # start_pair NAME [OPTION]
  WEFT_HOST_DEVICE=memory=268435456,works_when=$work/never${2:+,$2} start_peer "$1" --device cuda --device cpu:1
  wait_for_log "$work/$1.log" 'info joined name=pair-cuda' 120
  wait_for_log "$work/$1.log" 'info joined name=pair-cpu:1' 120
}
start_pair pair
[ "$(peers_that_are pool | sort | xargs)" = 'pair-cpu:1 pair-cuda' ] || fail "in the pool: $(peers_that_are pool | xargs)"
kill -TERM "${peer_pid[pair]}"
status=0; wait "${peer_pid[pair]}" || status=$?; unset "peer_pid[pair]"
[ "$status" = 0 ] || fail "two peers told to leave ended with exit code $status"
echo "ok: two devices of one machine: a peer each, and both leave when they are told to"

# The device of one of the stages is lost, from one call to the next.
peer frail "lose_when=$work/lost"
peer sound
submit_job "$work/job.yaml" "${sets[@]}" --set "placement={stages: 2}" --set "output=$work/lost.onnx"
wait_for_step 3
peer spare
: >"$work/lost"
status=0
wait "${peer_pid[frail]}" || status=$?
unset 'peer_pid[frail]'
[ "$status" = 8 ] || fail "a peer whose device is lost ended with exit code $status, not 8"
grep -q 'DeviceLost' "$work/frail.log" || fail "it did not say why: $(tail -n 3 "$work/frail.log")"
echo "ok: a lost device: its peer left with exit code 8 and says: $(grep -m1 'DeviceLost' "$work/frail.log" | cut -c1-120)"
finish_job
steps_are_whole "$steps"
same_file "after a device was lost" "$work/local.onnx" "$work/lost.onnx"

if [ "${1:-}" != --quick ]; then
  # The owner began a game, say: no call returns for a while, and then they do.
  for peer in sound spare; do end_process TERM "${peer_pid[$peer]}"; unset "peer_pid[$peer]"; done
  peer busy "hang_while=$work/hung"
  peer calm
  submit_job "$work/job.yaml" "${sets[@]}" --set "placement={stages: 2}" --set "output=$work/hung.onnx"
  wait_for_step 3
  peer other
  : >"$work/hung"
  wait_for_log "$work/busy.log" 'device_overdue' 90
  echo "ok: a device that does not answer: $(cut -c1-120 <<<"$LINE")"
  finish_job
  steps_are_whole "$steps"
  same_file "after a device hung" "$work/local.onnx" "$work/hung.onnx"
  rm "$work/hung"
  wait_for_log "$work/busy.log" 'device_answers' 60
  for ((looks = 0; ; ++looks)); do
    peers_that_are pool | grep -qx busy && break
    [ "$looks" -lt 500 ] || fail "its peer has not joined again"
  done
  echo "ok: it answers again, and its peer has joined again"
fi
echo "device_lost: what a device takes with it comes back"
