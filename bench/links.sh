#!/usr/bin/env bash
# What peers find out about links that nobody told them of, on this machine with the emulator:
#   bench/links.sh speed [STEPS]    three peers on lines of 8, 12 and 100 Mbit/s, a job of three stages: the
#                                   samples/s that its plan predicts, and those that it reaches
#   bench/links.sh loss [STEPS]     the same job with policy auto to its end (STEPS, default 300): its steps a second and
#                                   the loss on what was held out, beside those of the same job not compressed (the
#                                   speed over 10 steps, the loss of weft local, which has the same bits)
#   bench/links.sh matrix [PEERS]   PEERS (default 12) peers in four regions: how far the figures of weft peers --links
#                                   are from the emulator's, and how long it took to have them all
# JOB and BATCH (default examples/gpt/job.yaml with our texts, 16), STAGES (3), LINKS (measure; assume: as without any)
# change the first; TEXT (a file; else a made one) what the second learns; RAW=1 shows what the peers of the last reported.
source "$(dirname "$0")/../tests/e2e/cluster.sh"
what=${1:-speed}
cluster_begin

# Until nothing in the matrix of so many peers is a guess; sets SECONDS_TAKEN.
wait_for_links() {
  local began=$(microseconds) known=0 wanted=$(($1 * ($1 - 1)))
  while [ "$known" -lt "$wanted" ]; do
    [ $(($(microseconds) - began)) -lt 120000000 ] || fail "$known of $wanted links are known after 120 s"
    known=$("$weft" peers --links --format json | grep '"event":"link"' | grep -c '"assumed":false' || true)
    sleep 0.2
  done
  SECONDS_TAKEN=$(awk -v t=$(($(microseconds) - began)) 'BEGIN { printf "%.1f", t / 1e6 }')
}

three_peers() {  # three_peers BROKER-ARGS
  local name
  cat >"$work/lines.yaml" <<YAML
devices:
  - {name: slow, type: gtx1080ti, region: here, uplink: 8Mbit, downlink: 8Mbit}
  - {name: middle, type: gtx1080ti, region: here, uplink: 12Mbit, downlink: 12Mbit}
  - {name: fast, type: gtx1080ti, region: here, uplink: 100Mbit, downlink: 100Mbit}
regions:
  within: {round_trip_ms: 10, bandwidth: 1Gbit}
YAML
  start_broker --links "${LINKS:-measure}" "$@"
  for name in slow middle fast; do
    start_peer "$name" --device cpu:1 --memory 2GiB --listen 127.0.0.1:0 --emulate "$work/lines.yaml" --region here \
      --as "$name"
  done
  until [ "$(peers_that_are pool | wc -l)" -eq 3 ]; do sleep 0.2; done
}
# Over the next N steps: sets REACHED (samples a second).
reached() {
  wait_for_step $((STEP + 1))
  local from=$STEP began; began=$(microseconds)
  wait_for_step $((from + $1))
  REACHED=$(awk -v n=$((STEP - from)) -v t=$(($(microseconds) - began)) -v b="${BATCH:-16}" 'BEGIN { printf "%.2f", b * n * 1e6 / t }')
}

speed() {
  local steps=${1:-8} predicted
  three_peers --compare-share 0 --copy-rate none
  cp examples/gpt/job.yaml examples/gpt/model.onnx "$work/"
  made_text 300000 >"$work/corpus.txt"
  submit_job "${JOB:-$work/job.yaml}" --set "placement.stages=${STAGES:-3}" --set evaluate_every=0 --set "output=$work/out.onnx"
  wait_for_event '"event":"plan"'
  predicted=$(sed -n 's/.*predicted step [^(]*(\([0-9.]*\) samples.*/\1/p' <<<"$LINE")
  "$weft" peers --links
  "$weft" status "$job_number" --verbose | sed -n 's/^/  /p'
  wait_for_step 1
  reached "$steps"
  echo "predicted $predicted samples/s, reached $REACHED samples/s over $steps steps"
}

loss() {
  local steps=${1:-300} job dense compressed here there
  three_peers
  cp examples/gpt/job.yaml examples/gpt/model.onnx "$work/"
  if [ -n "${TEXT:-}" ]; then cp "$TEXT" "$work/corpus.txt"; else made_text 300000 >"$work/corpus.txt"; fi
  job=("${JOB:-$work/job.yaml}" --set "steps=$steps" --set evaluate_every=0 --set schedule.warmup_steps=30 --set "output=$work/out.onnx")
  submit_job "${job[@]}" --set "placement.stages=${STAGES:-3}"
  wait_for_step 1; reached 10; dense=$REACHED
  "$weft" stop "$job_number" >/dev/null; finish_job; STEP=0
  submit_job "${job[@]}" --set "placement.stages=${STAGES:-3}" --set 'compression={policy: auto}'
  wait_for_step 1; reached 30; compressed=$REACHED
  wait_for_event '"event":"evaluation"' 1200
  there=$(field loss <<<"$LINE")
  "$weft" status "$job_number" --verbose | sed -n 's/^/  /p'
  here=$("$weft" local "${job[@]}" --format json | grep '"event":"evaluation"' | tail -n 1 | field loss)
  awk -v d="$dense" -v c="$compressed" -v h="$here" -v t="$there" -v n="$steps" \
    'BEGIN { printf "auto %.2f samples/s, %.2f times the %.2f not compressed; held-out loss after %d steps %.4f, %+.2f%% of %.4f\n", c, c / d, d, n, t, 100 * (t / h - 1), h }'
}

matrix() {
  local count=${1:-12} i region regions=(a b c d)
  cat >"$work/regions.yaml" <<YAML
regions:
  within: {round_trip_ms: 2, bandwidth: 100Mbit}
  between:
    - {from: a, to: b, round_trip_ms: 20, bandwidth: 50Mbit}
    - {from: a, to: c, round_trip_ms: 60, bandwidth: 20Mbit, one_way: true}
    - {from: c, to: a, round_trip_ms: 60, bandwidth: 30Mbit, one_way: true}
    - {from: a, to: d, round_trip_ms: 120, bandwidth: 8Mbit}
    - {from: b, to: c, round_trip_ms: 40, bandwidth: 40Mbit}
    - {from: b, to: d, round_trip_ms: 100, bandwidth: 10Mbit}
    - {from: c, to: d, round_trip_ms: 80, bandwidth: 12Mbit}
YAML
  start_broker
  for ((i = 0; i < count; ++i)); do
    region=${regions[$((i % 4))]}
    start_peer "$region$((i / 4 + 1))" --device null:gtx1080ti --listen 127.0.0.1:0 --emulate "$work/regions.yaml" --region "$region"
  done
  until [ "$(peers_that_are pool | wc -l)" -eq "$count" ]; do sleep 0.2; done
  wait_for_links "$count"
  [ -z "${RAW:-}" ] || grep -h link_ "$work/broker.log"
  "$weft" peers --links
  "$weft" peers --links --format json | grep '"event":"link"' | sed 's/.*"from":"\(.\).*"to":"\(.\).*"bytes_per_second":\([0-9.e+]*\).*/\1\2 \3/' |
    awk -v took="$SECONDS_TAKEN" '
      BEGIN { split("aa 100 bb 100 cc 100 dd 100 ab 50 ba 50 ac 20 ca 30 ad 8 da 8 bc 40 cb 40 bd 10 db 10 cd 12 dc 12", f, " ")
              for (i = 1; i < 32; i += 2) true_rate[f[i]] = f[i + 1] }
      { off = $2 * 8e-6 / true_rate[$1] - 1; off = off < 0 ? -off : off; sum += off; n++
        if (off > worst) { worst = off; at = $1 } if (off > 0.15) bad++ }
      END { printf "%d links within %.1f s: off by %.1f%% in the mean, %.1f%% at most (%s); %d by more than 15%%\n",
              n, took, 100 * sum / n, 100 * worst, at, bad }'
}

case $what in
  speed | loss | matrix) shift || true; "$what" "$@" ;;
  *) fail "what: speed, loss or matrix" ;;
esac
