#!/usr/bin/env bash
# What memory replicas that add each step's gradients take, and how long their steps are, with all of the optimizer's slots in
# each (optimizer_state: replicated) and with a part of them (shared). A broker and peers of one thread each on this machine
# train a GPT with AdamW; turns replicated, shared. The trained files must be the same.
#   bench/replicas/slots.sh [REPLICAS...]      2 4
# LAYERS (6), WIDTH (512), VOCABULARY (20000), LENGTH (64): of the model. STEPS (10): of each run. COPIES (10Mbit): the rate of
# copies of the state, which take processor time of the same machine.
counts=("$@"); [ $# -gt 0 ] || counts=(2 4)
source "$(dirname "$0")/../../tests/e2e/cluster.sh"
cluster_begin
steps=${STEPS:-10}
python3 bench/adapters/make_gpt.py "$work/gpt" --layers "${LAYERS:-6}" --width "${WIDTH:-512}" --heads 8 \
  --vocabulary "${VOCABULARY:-20000}" --length "${LENGTH:-64}" --batch 4 >/dev/null

median() { sort -g | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }
printf '%-9s %-11s %10s %14s %9s\n' replicas slots 'a peer MiB' 'at its most' 's a step'
for count in "${counts[@]}"; do
  for state in replicated shared; do
    start_broker --copy-rate "${COPIES:-10Mbit}"
    for ((i = 0; i < count; ++i)); do start_peer "$state$count-$i" --device cpu:1 --listen 127.0.0.1:0; done
    for ((i = 0; i < count; ++i)); do wait_for_log "$work/$state$count-$i.log" 'info joined'; done
    submit_job "$work/gpt/full.yaml" --set microbatch_size=1 --set gradient_ranges=4 --set "replicas={min: $count, max: $count}" \
      --set "optimizer_state=$state" --set "steps=$steps" --set clip_norm=1 --set "output=$work/$state.onnx"
    wait_for_step "$steps"
    now=$(for pid in "${peer_pid[@]}"; do awk '/VmRSS/ { print $2 / 1024 }' "/proc/$pid/status"; done | sort -g | tail -n 1)
    most=$(for pid in "${peer_pid[@]}"; do awk '/VmHWM/ { print $2 / 1024 }' "/proc/$pid/status"; done | sort -g | tail -n 1)
    finish_job
    seconds=$(grep '"event":"step"' "$work/events" | grep -o '"seconds":[0-9.e-]*' | cut -d: -f2 | tail -n +4 | median)
    printf '%-9s %-11s %10.0f %14.0f %9.2f\n' "$count" "$state" "$now" "$most" "$seconds"
    for name in "${!peer_pid[@]}"; do lose_peer "$name"; done
    end_process KILL "$broker_pid"
    exec {broker_out}<&-
  done
  same_file "$count replicas, replicated and shared" "$work/replicated.onnx" "$work/shared.onnx"
done
