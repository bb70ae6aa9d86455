#!/usr/bin/env bash
# Peers with a cuda device, its kernels on the host's shim (tests/cuda/host_module.cc): a device is lost in the middle of a
# step: its peer says so, leaves with exit code 8, a spare takes the stage over, and the bytes are those of one process;
# likewise when no call of a device returns any more, which takes half a minute to be noticed: its peer comes back when the
# device answers. Two stages that nothing happens to give the same bytes, too.
source "$(dirname "$0")/cluster.sh"
cluster_begin
modules=${WEFT_HOST_MODULES:-$PWD/build/release/tests/cuda/modules}
[ -e "$modules/weft_backend_cuda.so" ] || fail "no module in $modules"
export WEFT_MODULES=$modules
take_model two_heads
steps=40
sets=(--set "steps=$steps" --set epochs=null)

"$weft" local "$work/job.yaml" "${sets[@]}" --backend cuda --set "output=$work/local.onnx" >"$work/local.log" 2>&1 ||
  fail "weft local --backend cuda: $(cat "$work/local.log")"
echo "ok: weft local --backend cuda, on the host's shim"

# The program itself needs nothing of CUDA; without the module it says so.
! ldd "$weft" | grep -E 'lib(cuda|cublas|cudnn|nvrtc|nvJitLink)' || fail "weft needs a library of CUDA"
status=0; WEFT_MODULES=$work "$weft" local "$work/job.yaml" --backend cuda >"$work/none.log" 2>&1 || status=$?
[ "$status" = 3 ] && grep -q 'there is no weft_backend_cuda.so' "$work/none.log" || fail "without a module: status $status, $(cat "$work/none.log")"
echo "ok: without a module: exit code 3, and says what is missing"

start_broker --lease 3s
peers() {  # peers NAME...: of the host's device, which is lost when there is NAME.lost, and hangs while there is NAME.hung
  local name
  for name; do
    # The shim takes minutes to be measured: before there is NAME.works its kernels compute nothing.
    WEFT_HOST_DEVICE=memory=268435456,works_when=$work/$name.works,lose_when=$work/$name.lost,hang_while=$work/$name.hung \
      start_peer "$name" --device cuda --listen 127.0.0.1:0
  done
  for name; do
    wait_for_log "$work/$name.log" 'info joined' 120
    : >"$work/$name.works"
  done
}
computing() {  # computing NAME...: the first of them that has a stage
  local name
  for name; do
    case $(grep -oE 'stage_(assigned|released)' "$work/$name.log" | tail -n 1) in stage_assigned) echo "$name"; return ;; esac
  done
  fail "none of $* has a stage"
}
in_two_stages() { submit_job "$work/job.yaml" "${sets[@]}" --set "placement={stages: 2}" --set "output=$work/$1.onnx"; }

# Two compute and the third stands by. The device of one of the two is lost, from one call to the next.
peers one two three
in_two_stages lost
wait_for_step 3
frail=$(computing one two three)
: >"$work/$frail.lost"
status=0
wait "${peer_pid[$frail]}" || status=$?
unset "peer_pid[$frail]"
[ "$status" = 8 ] || fail "a peer whose device is lost ended with exit code $status, not 8"
grep -q 'DeviceLost' "$work/$frail.log" || fail "it did not say why: $(tail -n 3 "$work/$frail.log")"
echo "ok: a lost device: its peer left with exit code 8 and says: $(grep -m1 'DeviceLost' "$work/$frail.log" | cut -c1-120)"
finish_job
steps_are_whole "$steps"
same_file "after a device was lost" "$work/local.onnx" "$work/lost.onnx"

in_two_stages whole
finish_job
same_file "two stages that nothing happened to" "$work/local.onnx" "$work/whole.onnx"

# The owner began a game, say: no call returns for a while, and then they do.
peers four
in_two_stages hung
wait_for_step 3
busy=$(computing "${!peer_pid[@]}")
: >"$work/$busy.hung"
wait_for_log "$work/$busy.log" 'device_overdue' 90
echo "ok: a device that does not answer: $(cut -c1-120 <<<"$LINE")"
finish_job
steps_are_whole "$steps"
same_file "after a device hung" "$work/local.onnx" "$work/hung.onnx"
rm "$work/$busy.hung"
wait_for_log "$work/$busy.log" 'device_answers' 60
for ((looks = 0; ; ++looks)); do
  peers_that_are pool | grep -qx "$busy" && break
  [ "$looks" -lt 500 ] || fail "its peer has not joined again"
done
echo "ok: it answers again, and its peer has joined again"

# Several devices of one machine: a peer each, that ends by itself; told to leave, both do.
for name in "${!peer_pid[@]}"; do end_process TERM "${peer_pid[$name]}"; unset "peer_pid[$name]"; done
WEFT_HOST_DEVICE=memory=268435456,works_when=$work/never start_peer pair --device cuda --device cpu:1
wait_for_log "$work/pair.log" 'info joined name=pair-cuda' 120
wait_for_log "$work/pair.log" 'info joined name=pair-cpu:1' 120
[ "$(peers_that_are pool | sort | xargs)" = 'pair-cpu:1 pair-cuda' ] || fail "in the pool: $(peers_that_are pool | xargs)"
kill -TERM "${peer_pid[pair]}"
status=0; wait "${peer_pid[pair]}" || status=$?; unset "peer_pid[pair]"
[ "$status" = 0 ] || fail "two peers told to leave ended with exit code $status"
echo "ok: two devices of one machine: a peer each, and both leave when they are told to"
echo "device_lost: what a device takes with it comes back"
