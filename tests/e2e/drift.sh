#!/usr/bin/env bash
# Links that change while a job runs: two of three peers have its stages when one's uplink falls to a tenth. The run is
# planned again with what its traffic showed, moves to the third peer after a snapshot, is fast again, and ends in the bytes
# of one machine. Then, nothing more changing, it stays.
source "$(dirname "$0")/cluster.sh"
cluster_begin
text=$work/corpus.txt
made_text 60000 >"$text"

fast_line=$((100 / slower))Mbit slow_line=$((10 / slower))Mbit  # links matter beside a sanitizer's computing, too
lines() {  # lines SLOW [RATE]: the cluster file, with this peer's uplink at RATE
  local name
  { echo "devices:"
    for name in a b c; do
      echo "  - {name: $name, type: gtx1080ti, region: here, uplink: $([ "$name" = "$1" ] && echo "$2" || echo $fast_line), downlink: $fast_line}"
    done
    echo "regions: {within: {round_trip_ms: 4, bandwidth: 1Gbit}}"
  } >"$work/lines.yaml.new"
  mv "$work/lines.yaml.new" "$work/lines.yaml"
}
lines none
start_broker --replan-after 3s --copy-rate 100Mbit
for name in a b c; do
  start_peer "$name" --device cpu:1 --memory 2GiB --listen 127.0.0.1:0 --emulate "$work/lines.yaml" --region here --as "$name"
done
until [ "$(peers_that_are pool | wc -l)" -eq 3 ]; do sleep 0.2; done

sets=(--set "data.train.path=$text" --set batch_size=8 --set microbatch_size=4 --set schedule=null --set evaluate_every=0
      --set checkpoint=null --set steps=2000)
submit_job examples/gpt/job.yaml "${sets[@]}" --set placement.stages=2 --set "output=$work/out.onnx"
wait_for_step 10
mapfile -t before < <(active_peers)
[ ${#before[@]} -eq 2 ] || fail "not two peers have stages: ${before[*]}"
slow=${before[0]}
lines "$slow" $slow_line
kill -USR1 "${peer_pid[$slow]}"
wait_for_log "$work/$slow.log" lines_changed
wait_for_event '"event":"notice"' 240
until [[ $LINE == *'planned anew'*moving* ]]; do wait_for_event '"event":"notice"' 240; done
echo "ok: with $slow at $slow_line: $(sed -n 's/.*"text":"\([^"]*\)".*/\1/p' <<<"$LINE")"
until [[ $LINE == *'"state":"running"'* ]]; do wait_for_event '"event":"state"'; done
next_step
mapfile -t after < <(active_peers)
[[ " ${after[*]} " != *" $slow "* ]] || fail "it still runs on $slow: ${after[*]}"
echo "ok: from ${before[*]} to ${after[*]}"
wait_for_step $((STEP + 50))
stop_job "$work/out.onnx"
[ "$(grep -c ': moving, which takes' "$work/events")" -le 2 ] || fail "it moved three times and more"
steps_are_whole "$STEPS"
"$weft" local examples/gpt/job.yaml "${sets[@]}" --set "steps=$STEPS" --threads 1 --set "output=$work/local.onnx" >/dev/null
same_file "a run that moved, $STEPS steps" "$work/local.onnx" "$work/out.onnx"
