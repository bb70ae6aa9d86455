#!/usr/bin/env bash
# A model of 200 MB goes from a client to two peers and comes back trained, and nobody holds more of it than is theirs:
# the client and the process that plans may not take as much as half of it, and a peer takes what its stage does and a
# tenth. Only its head is trained. The trained file is that of one machine.   large.sh [--quick]
source "$(dirname "$0")/cluster.sh"
skip_under_sanitizers
cluster_begin
maker=${WEFT_BENCH_MODEL:-build/release/weft_bench_model}
"$maker" 1024 48 16 "$work/model.onnx"
made_model_job <<YAML
data:
  train: {type: text, path: corpus.txt, sequence_length: 16, validation: 0.005}
steps: 3
freeze: ["embedding", "layer.*"]
YAML
model_mib=$(($(stat -c %s "$work/model.onnx") >> 20))

peak_mib() { awk '/^VmHWM:/ { print int($2 / 1024) }' "/proc/$1/status"; }
bounded_mib=96
cat >"$work/bounded" <<BOUNDED
#!/bin/sh
ulimit -d $((bounded_mib << 10))
exec "$weft" "\$@"
BOUNDED
chmod +x "$work/bounded"

start_broker --plan-memory ${bounded_mib}MiB
start_peer a --device cpu:1 --memory 512MiB --listen 127.0.0.1:0
start_peer b --device cpu:1 --memory 512MiB --listen 127.0.0.1:0
for name in a b; do wait_for_log "$work/$name.log" 'info joined' 300; done
rests_mib=$(peak_mib "${peer_pid[a]}")
weft=$work/bounded submit_job "$work/job.yaml" --set placement.stages=2 --set placement.strategy=equal-compute --set "output=$work/out.onnx"
finish_job
echo "ok: a model of $model_mib MiB: the client and the planning process took at most $bounded_mib MiB each"
echo "broker: at most $(peak_mib "$broker_pid") MiB resident"
for name in a b; do
  peak=$(peak_mib "${peer_pid[$name]}")
  allowed=$((rests_mib + model_mib * 11 / 20 + 64))
  echo "$name: at most $peak MiB resident, of that $rests_mib before it had a stage"
  [ "$peak" -le "$allowed" ] || fail "$name took $peak MiB for half of $model_mib MiB"
done

"$weft" local "$work/job.yaml" --set "output=$work/alone.onnx" >>"$work/local.log" 2>&1
same_file "two peers and one machine" "$work/out.onnx" "$work/alone.onnx"
(ulimit -d $((64 << 10)); "$weft" inspect "$work/model.onnx" --format json >/dev/null) || fail "inspect takes more than 64 MiB"
(ulimit -d $((bounded_mib << 10)); "$weft" plan "$work/model.onnx" --cluster examples/plans/campus-48.yaml >/dev/null) || fail "plan takes more than $bounded_mib MiB"
echo "ok: inspect and plan pass the weights over"
