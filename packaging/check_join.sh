#!/bin/bash
# In a root of check.sh, without a network: a broker and a peer over the loopback, until the peer has joined. With "deb" the
# package is installed first; else the argument is the program.
set -eu
program=$1
if [ "$program" = deb ]; then
  apt-get -qq install -y --no-install-recommends /weft.deb
  program=weft
fi
data=$(mktemp -d)
"$program" --version
"$program" broker --data-dir "$data/broker" --listen 127.0.0.1:0 >"$data/out" 2>"$data/log" &
broker=$!
# A line of a file, once it is there.
await() {
  timeout 60 grep -m 1 -- "$2" < <(exec tail -n +1 -f "$1") && return
  echo "check_join: no '$2' within a minute:" >&2
  cat "$data"/out "$data"/*log >&2
  return 1
}
line=$(await "$data/out" '^weft join')
address=$(echo "$line" | cut -d' ' -f3)
token=$(echo "$line" | cut -d' ' -f5)
echo "$token" >/peer.token
HOME=$data "$program" join "$address" --token @/peer.token --device cpu:1 --memory 256MiB 2>"$data/peer.log" &
peer=$!
await "$data/log" peer_joined
kill "$peer"
wait "$peer" || true
kill "$broker"
wait "$broker"
rm -r "$data"
