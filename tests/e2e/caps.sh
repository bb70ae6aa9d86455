#!/usr/bin/env bash
# An owner's caps, in processes: what the broker measures of a capped peer is its cap, whoever dials; over an emulated line the
# lower of the two rates holds.
source "$(dirname "$0")/cluster.sh"
cluster_begin
{ echo "devices:"
  echo "  - {name: slow, type: gtx1080ti, region: here, uplink: 5Mbit, downlink: 40Mbit}"
  echo "regions: {within: {round_trip_ms: 4, bandwidth: 1Gbit}}"
} >"$work/lines.yaml"
start_broker
start_peer a --device cpu:1 --memory 2GiB --listen 127.0.0.1:0 --upload 10Mbit --download 20Mbit
start_peer b --device cpu:1 --memory 2GiB --listen 127.0.0.1:0 --emulate "$work/lines.yaml" --region here --as slow --upload 30Mbit --download 15Mbit
start_peer c --device cpu:1 --memory 2GiB --listen 127.0.0.1:0
until [ "$(peers_that_are pool | wc -l)" -eq 3 ]; do sleep 0.2; done
links() { "$weft" peers --links --format json; }
for ((tries = 0; tries < 600; ++tries)); do
  [ "$(links | grep '"event":"link"' | grep -c '"assumed":false')" -lt 6 ] || break
  sleep 0.2
done

rate() {  # rate FROM TO: kbit/s of one flow that has the lines of both ends for itself
  links | awk -v from="$1" -v to="$2" '
    function number(key,  at) { at = index($0, "\"" key "\":"); return at ? substr($0, at + length(key) + 3) + 0 : 0 }
    function least(value) { if (value > 0 && (rate == 0 || value < rate)) rate = value }
    index($0, "\"name\":\"" from "\"") { least(number("uplink_bytes_per_second")) }
    index($0, "\"name\":\"" to "\"") { least(number("downlink_bytes_per_second")) }
    index($0, "\"from\":\"" from "\",\"to\":\"" to "\"") { least(number("bytes_per_second")) }
    END { printf "%d\n", rate * 8 / 1000 }'
}
# A cap is never exceeded. A machine that was busy while a line was measured shows less: but no other of these caps.
expect() {  # expect FROM TO MBIT: 15% above at most, 30% below
  local is
  is=$(rate "$1" "$2")
  [ "$is" -ge $(($3 * 700)) ] && [ "$is" -le $(($3 * 1150)) ] || fail "$1 to $2: $is kbit/s, not $3 Mbit/s"
  echo "ok: $1 to $2: $is kbit/s"
}
expect a c 10
expect c a 20
expect a b 10
expect b c 5   # the emulated line is the slower
expect c b 15  # the cap is
expect b a 5
