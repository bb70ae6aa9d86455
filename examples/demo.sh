#!/usr/bin/env bash
# The demo: a broker and four peers as processes of their own on this machine, two in each of two regions that an
# emulated link of 20 Mbit/s and 80 ms round trip joins; the Fashion-MNIST job goes through all four as a pipeline.
# Called by ./dev demo, which has built weft. Leaves no process behind, also when interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."
weft=build/release/weft out=build/demo began=$(date +%s)
mkdir -p "$out"
work=$(mktemp -d)
export XDG_CONFIG_HOME=$work/config
pids=()
finish() {
  local status=$? pid
  trap - EXIT INT TERM
  for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do
    # Ends within a second or two; what hangs is ended for it.
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; read -r -t 0.1 <> <(:) || true; done
    kill -KILL "$pid" 2>/dev/null || true
  done
  wait 2>/dev/null || true
  [ "$status" = 0 ] || cp "$work"/*.log "$out"/ 2>/dev/null || true
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkfifo "$work/broker.out"
"$weft" broker --data-dir "$work/broker" --listen 127.0.0.1:0 >"$work/broker.out" 2>"$work/broker.log" &
pids+=($!)
exec {broker_out}<"$work/broker.out"
address='' token='' submitter=''
while [ -z "$token" ] || [ -z "$submitter" ]; do
  read -r -t 30 line <&"$broker_out" || { echo "demo: the broker did not start:" >&2; cat "$work/broker.log" >&2; exit 1; }
  case $line in
    "weft join "*) address=$(cut -d' ' -f3 <<<"$line") token=$(cut -d' ' -f5 <<<"$line") ;;
    "submitter token: "*) submitter=$(cut -d' ' -f3 <<<"$line") ;;
  esac
done
echo "broker at $address; four peers join it, two in the region east and two in the region west,"
echo "with an emulated link of 20 Mbit/s and 80 ms round trip between the regions"
peer() {
  "$weft" join "$address" --token "$token" --name "$1" --device cpu:1 --memory 2GiB --data-dir "$work/$1" --listen 127.0.0.1:0 \
    --emulate examples/fashion-mnist/two-regions.yaml --region "$2" >"$work/$1.log" 2>&1 &
  pids+=($!)
}
peer anna east; peer bert east; peer carl west; peer dora west

WEFT_BROKER=$address WEFT_TOKEN=$submitter "$weft" submit examples/fashion-mnist/job.yaml \
  --set placement.stages=4 --set batch_size=128 --set microbatch_size=32 --set evaluate_every=0 --set 'compression={policy: auto}' \
  --set "output=$out/trained.onnx" &
submit=$!
pids+=("$submit")
wait "$submit"  # which a signal interrupts, unlike a command in the foreground
echo "demo seconds: $(($(date +%s) - began))"
echo "trained model: $out/trained.onnx; for any ONNX runtime: $out/trained.inference.onnx"
echo "try next:"
echo "  $weft inspect $out/trained.onnx                    what is in it"
echo "  $weft local examples/fashion-mnist/job.yaml        the same on one machine alone"
echo "  $weft broker                                       your own broker; it prints what to type on other machines"
