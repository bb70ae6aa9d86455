# Homes behind emulated lines of one rate, whose devices compute nothing: for the scripts here that source it, after
# tests/e2e/cluster.sh. WIDTH (512), LAYERS (4) and LENGTH (192) are of the model, DEVICE (null:gtx1080ti/16) says how fast
# a home is, BATCH (16) and EVERY (30) are of the job. SITE (1): so many homes are at one place, 1 ms and 1 Gbit/s from each
# other, each with a line of its own to the others.
device=${DEVICE:-null:gtx1080ti/16} batch=${BATCH:-16} every=${EVERY:-30} site=${SITE:-1}

# The job that they train, job.yaml, with its model and data.
made_home_job() {
  made_model_job <<YAML
data:
  train: {type: text, path: corpus.txt, sequence_length: ${LENGTH:-192}, validation: 0}
steps: 1000000
YAML
  "${WEFT_BENCH_MODEL:-build/release/weft_bench_model}" "${WIDTH:-512}" "${LAYERS:-4}" "${LENGTH:-192}" "$work/model.onnx"
  made_text $((${LENGTH:-192} * 4000)) >"$work/corpus.txt"
}
# made_home_lines HOMES RATE: 40 ms between two places; each home has a line of that rate both ways, or, where several are at one
# place, the ways between two places have it.
made_home_lines() {
  local i j rate=$2 line=$2
  [ "$site" -eq 1 ] && rate=1Gbit || line=1Gbit
  { echo "devices:"
    for ((i = 0; i < $1; ++i)); do
      echo "  - {name: home$i, type: gtx1080ti, region: r$((i / site)), uplink: $line, downlink: $line}"
    done
    echo "regions:"
    echo "  within: {round_trip_ms: 1, bandwidth: 1Gbit}"
    echo "  between:"
    for ((i = 0; i * site < $1; ++i)); do
      for ((j = i + 1; j * site < $1; ++j)); do echo "    - {from: r$i, to: r$j, round_trip_ms: 40, bandwidth: $rate}"; done
    done
  } >"$work/lines.yaml"
}
# join_home I [DEVICE]
join_home() {
  start_peer "home$1" --device "${2:-$device}" --listen 127.0.0.1:0 --emulate "$work/lines.yaml" --region "r$(($1 / site))" --as "home$1"
}
# submit_home_job [ARGS]
submit_home_job() {
  submit_job "$work/job.yaml" --set evaluate_every=0 --set checkpoint=null --set "batch_size=$batch" --set microbatch_size=1 \
    "$@" --set "output=$work/out.onnx"
}
# watch_samples SECONDS: how many a second, from the step that was seen last, as RATE.
watch_samples() {
  local first=$STEP last=$STEP began; began=$(microseconds)
  until [ $(($(microseconds) - began)) -gt $(($1 * 1000000)) ]; do next_step; last=$STEP; done
  RATE=$(awk -v n=$(((last - first) * batch)) -v us=$(($(microseconds) - began)) 'BEGIN { printf "%.1f", n * 1e6 / us }')
}
# The job's command, all homes and the broker are gone, and nothing is left of them.
end_homes() {
  local name
  end_process KILL "$submit_pid"
  for name in "${!peer_pid[@]}"; do lose_peer "$name"; done
  end_process KILL "$broker_pid"
  rm -rf "$work/broker" "$work"/peer-* "$work"/home*.log
  unset BROKER WEFT_TOKEN
}
