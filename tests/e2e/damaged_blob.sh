#!/usr/bin/env bash
# A weight of a submitted model is damaged on the broker's disk before a peer has fetched it; it is large, so planning
# does not read it. The peer says which bytes are not those of their name, the broker looks at its own and puts them
# aside, and the same job, submitted again, brings them anew: it ends in the bytes of `weft local`.
#   damaged_blob.sh [--quick]
source "$(dirname "$0")/cluster.sh"
cluster_begin
maker=${WEFT_BENCH_MODEL:-build/release/weft_bench_model}
"$maker" 1024 2 16 "$work/model.onnx"
made_model_job <<YAML
data:
  train: {type: text, path: corpus.txt, sequence_length: 16, validation: 0.005}
steps: 2
YAML
"$weft" local "$work/job.yaml" --threads 1 --set "output=$work/local.onnx" --format json >/dev/null

start_broker
submit_job "$work/job.yaml" --set "output=$work/out.onnx"
wait_for_event '"state":"waiting"'
blob=$(find "$work/broker" -type f -path '*blobs*' -printf '%s %p\n' | sort -n | tail -n 1 | cut -d' ' -f2-)
[ "$(stat -c %s "${blob:-/dev/null}")" -gt $((1 << 20)) ] || fail "there is no large blob beneath $work/broker"
printf 'damage' | dd of="$blob" bs=1 seek=16 conv=notrunc status=none
start_peer a --device cpu:1
wait_for_log "$work/broker.log" 'blob_damaged' 120
echo "ok: the broker found it: ${LINE#*error }"
[ ! -e "$blob" ] || fail "it still lies where it is given out"
"$weft" stop "$job_number" >/dev/null 2>&1 || true  # it may have ended by itself
while read -r -t $((120 * slower)) LINE <&"$events"; do [[ $LINE != *'"event":"result"'* ]] || break; done
wait "$submit_pid" || true

submit_job "$work/job.yaml" --set "output=$work/out.onnx"
finish_job
same_file "submitted again" "$work/local.onnx" "$work/out.onnx"
