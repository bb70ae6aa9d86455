#!/usr/bin/env bash
# One long way under real TCP: how much of it a link carries with one connection and with several, and how long what is
# needed at once takes meanwhile.
#   bench/link_streams.sh [RATE [ROUND_TRIP_MS [LOSS [CONGESTION]]]]     default 100Mbit 40 0.001 reno; as root
# SEED and QUEUE_MS go to the link (bench/wide_area/tun_link.cc). EACH (20) are the seconds of each measurement.
set -euo pipefail
rate=${1:-100Mbit} round_trip=${2:-40} loss=${3:-0.001} congestion=${4:-reno} build=${WEFT_BUILD:-build/release}
cd "$(dirname "$0")/.."
[ "$(id -u)" -eq 0 ] || { echo "bench/link_streams.sh: namespaces need root" >&2; exit 2; }
if [ -z "${WEFT_BUILD:-}" ]; then
  [ -f build/release/build.ninja ] || cmake --preset release >&2
  cmake --build --preset release -j "${WEFT_JOBS:-2}" --target weft_tun_link weft_bench_link_streams >&2
fi
work=$(mktemp -d)
links=
trap '[ -z "$links" ] || kill "$links"; rm -rf "$work"' EXIT
cat >"$work/cluster.yaml" <<YAML
devices:
  - {type: rtx3080, count: 1, region: here}
  - {type: rtx3080, count: 1, region: there}
regions:
  within: {round_trip_ms: 1, bandwidth: 10Gbit}
  between: [{from: here, to: there, round_trip_ms: $round_trip, bandwidth: $rate, loss: $loss}]
YAML
mkfifo "$work/links"
"$build/weft_tun_link" "$work/cluster.yaml" --seed "${SEED:-1}" --queue-ms "${QUEUE_MS:-100}" --congestion "$congestion" >"$work/links" &
links=$!
declare -a address=() space=()
exec {lines}<"$work/links"
while read -r name at where <&"$lines" && [ "$name" != ready ]; do
  [ "$name" = - ] || address+=("$at") space+=("$where")
done
[ "$name" = ready ] || { links=; exit 2; }
echo "$rate, $round_trip ms, loss $loss, $congestion:"
"$build/weft_bench_link_streams" "${space[0]}" "${space[1]}" "${address[1]}" "${EACH:-20}"
