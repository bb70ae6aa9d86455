#!/usr/bin/env bash
# A job over real sockets, by planning strategy and compression: a broker, and a null peer for each device of a cluster file, its links
# emulated as that file says. Prints what a plan predicts and what a step reaches.
#   bench/wide_area/real.sh JOB CLUSTER "STRATEGIES" "COMPRESSIONS" [--set KEY=VALUE ...]
# STEPS (default 6) are made, the last three count. The devices are all of the catalogue.
# NETNS=1: not emulated, but each in a network namespace of its own behind a TUN link (tun_link.cc), the broker too: as root. SEED, QUEUE_MS,
# CONGESTION go to the links. Says how full the busiest way between two was.
# LINKS=assume: nobody measures them, so the plans are of other links than those that there are.
# CLOCK: "STRATEGY COMPRESSION SAMPLES_PER_SECOND" a line, of the virtual clock, to compare with.
job=$(realpath "${1:?JOB}") cluster=$(realpath "${2:?CLUSTER}") strategies=${3:?STRATEGIES} compressions=${4:?COMPRESSIONS}
shift 4
source "$(dirname "${BASH_SOURCE[0]}")/../../tests/e2e/cluster.sh"
steps=${STEPS:-6} format=${FORMAT:-text} build=${WEFT_BUILD:-build/release}
cluster_begin

declare -A address=() space=()
start_links() {
  local name at where
  rm -f "$work/links"; mkfifo "$work/links"
  "$build/weft_tun_link" "$cluster" --seed "${SEED:-1}" --queue-ms "${QUEUE_MS:-100}" ${CONGESTION:+--congestion "$CONGESTION"} >"$work/links" &
  peer_pid[links]=$!  # ended with the peers; the namespaces go with it
  exec {links}<"$work/links"
  while read -r name at where <&"$links" && [ "$name" != ready ]; do address[$name]=$at space[$name]=$where; done
  [ "$name" = ready ] || { wait "${peer_pid[links]}"; exit; }
  # Whatever is started from now on is in the broker's namespace, or in SPACE.
  printf '#!/bin/sh\nexec nsenter --net="${SPACE:-%s}" "%s" "$@"\n' "${space[-]}" "$(realpath "$weft")" >"$work/weft"
  chmod +x "$work/weft"
  weft=$work/weft BROKER=${address[-]}:0
}
ways() {  # what each has carried so far
  local line
  [ -n "${NETNS:-}" ] || return 0
  kill -USR1 "${peer_pid[links]}"
  while read -r -t 10 line <&"$links" && [[ $line != *'"told"'* ]]; do printf '%s\n' "$line"; done
}
busiest_way() {  # busiest_way BEFORE AFTER MICROSECONDS: the share of its rate that the fullest one carried
  awk -v us="$3" '
    function of(key, text) { match($0, "\"" key "\":[^,}]*"); text = substr($0, RSTART, RLENGTH); sub(/.*:/, "", text); gsub(/"/, "", text); return text }
    { way = of("from") " " of("to"); rate = of("bytes_per_second") }
    NR == FNR { before[way] = of("bytes"); next }
    rate > 0 { share = (of("bytes") - before[way]) / (rate * us / 1e6); if (share > most) most = share }
    END { printf "%.3f", most }' "$1" "$2"
}

[ -z "${NETNS:-}" ] || start_links
start_broker --links "${LINKS:-measure}" --copy-rate none --compare-share 0
mapfile -t devices < <("$build/weft_bench_wan" --list-devices "$cluster")
# The broker's candidates stand in the order of their keys, and some strategies go by it: made here, it is the order of the file.
for device in "${devices[@]}"; do
  openssl genpkey -algorithm ed25519 -out "$work/key.pem"
  mv "$work/key.pem" "$work/$(openssl pkey -in "$work/key.pem" -pubout -outform DER | sha256sum | cut -d' ' -f1).key"
done
keys=("$work"/*.key) count=0
for device in "${devices[@]}"; do
  read -r type region name <<<"$device"
  mkdir -m 700 "$work/peer-$name"
  mv "${keys[count]}" "$work/peer-$name/identity.pem"
  link=(--listen 127.0.0.1:0 --emulate "$cluster" --as "$name")
  [ -z "${NETNS:-}" ] || link=(--listen "${address[$name]}:0")
  SPACE=${space[$name]:-} start_peer "$name" --device "null:$type" --region "$region" "${link[@]}"
  count=$((count + 1))
done
until [ "$(peers_that_are pool | wc -l)" -eq "$count" ]; do sleep 0.2; done
# Until what lies between any two is measured.
[ "${LINKS:-measure}" != measure ] || until [ "$("$weft" peers --links --format json | grep '"event":"link"' | grep -c '"assumed":false')" -ge $((count * (count - 1))) ]; do sleep 0.5; done

worst=
for strategy in $strategies; do
  for compression in $compressions; do
    until [ "$(peers_that_are pool | wc -l)" -eq "$count" ]; do sleep 0.2; done
    submit_job "$job" "$@" --set "placement.strategy=$strategy" --set placement.equal_bits=ignore \
      --set "compression.policy=$compression" --set evaluate_every=0 --set "steps=$steps" --set "output=$work/out.onnx"
    wait_for_event '"event":"plan"'
    predicted=$(sed -n 's/.*"predicted_samples_per_second": *\([0-9.e+-]*\).*/\1/p' <<<"$LINE")
    wait_for_step $((steps - 3)); began=$(microseconds); ways >"$work/ways.before"
    wait_for_step "$steps"; ended=$(microseconds); ways >"$work/ways.after"
    samples=$(grep '"event":"step"' "$work/events" | tail -n 1 |
      awk '{ match($0, /"seconds": ?[0-9.e+-]+/); t = substr($0, RSTART, RLENGTH); sub(/.*: ?/, "", t)
             match($0, /"samples_per_second": ?[0-9.e+-]+/); r = substr($0, RSTART, RLENGTH); sub(/.*: ?/, "", r); printf "%.0f", t * r }')
    full=$([ -z "${NETNS:-}" ] || busiest_way "$work/ways.before" "$work/ways.after" $((ended - began)))
    clock=$([ -z "${CLOCK:-}" ] || awk -v s="$strategy" -v c="$compression" '$1 == s && $2 == c { print $3 }' <<<"$CLOCK")
    rate=$(awk -v t=$((ended - began)) -v n="$samples" 'BEGIN { printf "%.6g", 3e6 * n / t }')
    awk -v format="$format" -v r="$rate" -v p="${predicted:-0}" -v s="$strategy" -v c="$compression" -v full="$full" -v clock="$clock" 'BEGIN {
      if (format == "json") {
        printf "{\"event\":\"row\",\"strategy\":\"%s\",\"compression\":\"%s\",\"samples_per_second\":%.6g,\"predicted_samples_per_second\":%.6g,", s, c, r, p
        if (full != "") printf "\"busiest_way\":%.3f,", full
        printf "\"links\":\"%s\",\"clock\":\"real\"}\n", full == "" ? "emulated" : "tun"
      } else {
        printf "%-17s %-8s %10.4g /s, predicted %10.4g (%+.1f%%)", s, c, r, p, 100 * (r / p - 1)
        if (clock != "") printf ", clock %10.4g (%+.1f%%)", clock, 100 * (r / clock - 1)
        if (full != "") printf ", busiest way %.1f%% full", 100 * full
        print ", real"
      } }'
    [ -z "$clock" ] || worst=$(awk -v r="$rate" -v clock="$clock" -v w="${worst:-0}" 'BEGIN { d = r / clock - 1; if (d < 0) d = -d; printf "%.6g", (d > w ? d : w) }')
    finish_job
  done
done
[ -z "$worst" ] || awk -v format="$format" -v w="$worst" 'BEGIN {
  if (format == "json") printf "{\"event\":\"clocks\",\"difference_max\":%.6g}\n", w
  else printf "real and virtual clock agree within %.1f%%\n", 100 * w }'
