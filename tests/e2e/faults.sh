#!/usr/bin/env bash
# Processes killed for real while a job runs: a peer (SIGKILL), a peer that freezes (SIGSTOP), the broker (SIGKILL, started
# again), a peer that leaves politely (SIGINT). The job goes on from its checkpoints and ends in the file of `weft local`.
source "$(dirname "$0")/cluster.sh"
cluster_begin
gunzip -c tests/numerics/gpt3/model.onnx.gz >"$work/model.onnx"
cp tests/numerics/gpt3/job.yaml tests/numerics/gpt3/data.npz "$work/"
sets=(--set steps=400 --set checkpoint.steps=20)
"$weft" local "$work/job.yaml" "${sets[@]}" --threads 1 --set "output=$work/local.onnx" --format json >/dev/null

start_broker
for name in a b c d e; do start_peer "$name" --device cpu:1 --listen 127.0.0.1:0; done

coproc follow { exec "$weft" submit "$work/job.yaml" "${sets[@]}" --set placement.stages=3 --set "output=$work/out.onnx" --format json 2>"$work/submit.log"; }
submit_pid=$follow_PID
exec {events}<&"${follow[0]}"
wait_for_step() {  # the first step event at or after the number; the job's own lines are the clock
  local line step
  while read -r -t 120 line <&"$events"; do
    case $line in
      *'"event":"step"'*)
        step=$(sed -E 's/.*"step": ?([0-9]+).*/\1/' <<<"$line")
        [ "$step" -ge "$1" ] && return 0 ;;
      *'"event":"result"'*) echo "FAILED: the job ended before step $1" >&2; exit 1 ;;
    esac
  done
  echo "FAILED: no step for two minutes" >&2; tail -5 "$work"/*.log >&2; exit 1
}
active() { "$weft" peers --format json | tr '}' '\n' | grep '"state": *"active"' | sed -E 's/.*"name": *"([^"]*)".*/\1/' | head -1; }

wait_for_step 50
victim=$(active); echo "killing $victim"; end_process KILL "${peer_pid[$victim]}"; unset "peer_pid[$victim]"
wait_for_step 100
victim=$(active); echo "freezing $victim"; kill -STOP "${peer_pid[$victim]}"
wait_for_step 150
kill -CONT "${peer_pid[$victim]}"
echo "killing the broker"; end_process KILL "$broker_pid"; start_broker
wait_for_step 220
start_peer f --device cpu:1 --listen 127.0.0.1:0
victim=$(active); echo "asking $victim to leave"; kill -INT "${peer_pid[$victim]}"
wait "${peer_pid[$victim]}" && echo "ok: it left with exit status 0"; unset "peer_pid[$victim]"
while read -r -t 120 line <&"$events"; do case $line in *'"event":"result"'*) break ;; esac; done
wait "$submit_pid"
same_file "after a kill, a freeze, a dead broker and a departure" "$work/local.onnx" "$work/out.onnx"
"$weft" status 1
