#!/usr/bin/env bash
# weft doctor where something is really wrong: a token that was revoked, a wrong clock, a full disk, and, in network
# namespaces, a symmetric NAT, a dead IPv6, a captive portal and a proxy that reads TLS. Each is named, with the exit code
# that scripts go by.
#
# It runs in a mount and network namespace of its own, so that nothing is left behind; where that is not allowed, or nft
# is not there, only what needs no network but loopback is tried, and the test counts as skipped.
if [ -z "${WEFT_DOCTOR_ALONE:-}" ] && unshare -rmn true 2>/dev/null; then
  WEFT_DOCTOR_ALONE=1 exec unshare -rmn "$0" "$@"
fi
source "$(dirname "$0")/cluster.sh"
cluster_begin
export XDG_DATA_HOME=$work/data
tokens=$work/broker

# Sets OUT and CODE.
doctor() { CODE=0; OUT=$("${under[@]}" "$weft" doctor "$@" 2>>"$work/doctor.log") || CODE=$?; printf '%s\n\n' "$OUT" >>"$work/doctor.log"; }
under=()
ends_with() { [ "$CODE" -eq "$1" ] || fail "exit code $CODE and not $1: $OUT"; }
says() {  # says STATE CHECK TEXT
  grep -qE "^$1 +$2 .*$3" <<<"$OUT" || fail "no line '$1 $2 ... $3' in: $OUT"
  echo "ok: $1 $2: $3"
}
is_silent_of() { ! grep -qE "^[a-z]+ +$1 " <<<"$OUT" || fail "a line of $1 in: $OUT"; }
new_token() { "$weft" token create --data-dir "$tokens" --role "$1" 2>/dev/null; }

# ---- this machine alone, and over loopback

doctor
says ok device "cpu works: "
says ok broker "only this machine was looked at"
ends_with 0
doctor --device cuda:7
says stops device "cuda:7 does not work"
ends_with 1

ip link set lo up 2>/dev/null || true
start_broker
doctor "$BROKER" --token "$PEER_TOKEN"
says ok token "lets a peer in"
says ok clock "as the broker's"
says ok reach "the broker is on this machine"
says ok relay "answers"
says '(ok|warning)' uplink 'Mbit/s with the broker'
says '(ok|warning)' downlink 'Mbit/s with the broker'
ends_with 0
key=$(sha256sum <"$XDG_DATA_HOME/weft/peer/identity.pem")
doctor "$BROKER" --token "$PEER_TOKEN"
[ "$key" = "$(sha256sum <"$XDG_DATA_HOME/weft/peer/identity.pem")" ] || fail "another key at the second time"

doctor --format json
ends_with 0
[ "$(head -n 1 <<<"$OUT" | field event)" = check ] && [ "$(tail -n 1 <<<"$OUT" | field event)" = result ] || fail "events: $OUT"
[ "$(tail -n 1 <<<"$OUT" | field status)" = completed ] || fail "the result: $OUT"

caller=$(new_token caller)
doctor --token "$caller"
says ok token "HTTP door"
revoked=$(new_token submitter)
id=$("$weft" token list --data-dir "$tokens" --format json | tail -n 1 | field id)
"$weft" token revoke "$id" --data-dir "$tokens" >/dev/null
under=(env XDG_CONFIG_HOME="$work/other")  # a key that was let in already needs no token
doctor --token "$revoked"
under=()
says stops token "revoked"
ends_with 1
doctor nobody
says stops peer "has no peer nobody"
ends_with 1

if ! is_sanitized && [ -n "${WEFT_SHIFTED_CLOCK:-}" ]; then
  under=(env LD_PRELOAD="$WEFT_SHIFTED_CLOCK")
  doctor
  says warning clock "(59m|1h).* ahead of the broker's"
  ends_with 0
  under=()
fi

lacks=
[ -n "${WEFT_DOCTOR_ALONE:-}" ] || lacks="namespaces"
command -v ip >/dev/null && command -v nft >/dev/null || lacks="${lacks:+$lacks, }ip or nft"
if [ -n "$lacks" ]; then echo "skipped: networks and disks, for want of $lacks; the rest is as it should be" >&2; exit 77; fi

# ---- a full disk

mkdir "$work/full"
mount -t tmpfs -o size=128k none "$work/full"
dd if=/dev/zero of="$work/full/other" bs=4k 2>/dev/null || true
doctor --data-dir "$work/full/peer"
says stops disk "full cannot be written: No space left on device \(0 B free\).*make room"
umount "$work/full"
ends_with 1

# ---- networks: a broker, two homes behind one router, which is here

end_process TERM "$broker_pid"
exec {broker_out}<&-
mount -t tmpfs none /run
mkdir -p /run/netns
in_net() { local net=$1; shift; nsenter "--net=/run/netns/$net" "$@"; }
add_net() {  # add_net NAME ADDRESS4 ADDRESS6 ROUTER4 ROUTER6
  ip netns add "$1"
  ip link add "to-$1" type veth peer name line netns "$1"
  ip address add "$4/24" dev "to-$1"; ip address add "$5/64" dev "to-$1" nodad; ip link set "to-$1" up
  in_net "$1" ip link set lo up
  in_net "$1" ip address add "$2/24" dev line; in_net "$1" ip address add "$3/64" dev line nodad
  in_net "$1" ip link set dev line up
}
add_net broker 203.0.113.2 2001:db8::2 203.0.113.1 2001:db8::1
for home in 1 2; do
  add_net "home$home" "192.168.$home.2" "fd00:$home::2" "192.168.$home.1" "fd00:$home::1"
  in_net "home$home" ip route add default via "192.168.$home.1"
  in_net "home$home" ip route add default via "fd00:$home::1"
done
in_net broker ip route add fd00::/16 via 2001:db8::1
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
# What leaves for the broker gets another port for each connection, as of a symmetric NAT.
nft -f - <<'NFT'
table ip nat {
  chain out {
    type nat hook postrouting priority 100
    oifname "to-broker" masquerade fully-random
  }
}
NFT
in_net broker nft -f - <<'NFT'
table ip6 dead {
  chain in {
    type filter hook input priority 0
    tcp dport 7700 drop
  }
}
NFT
broker_under=(nsenter --net=/run/netns/broker)
BROKER=203.0.113.2:7700
unset WEFT_TOKEN WEFT_BROKER
rm -rf "$tokens"
start_broker
for home in 1 2; do
  # nsenter becomes the peer, so that its process is known.
  nsenter "--net=/run/netns/home$home" "$weft" join "$BROKER" --token "$PEER_TOKEN" --name "home$home" --device null:rtx3080 \
    --data-dir "$work/peer-home$home" >>"$work/home$home.log" 2>&1 &
  peer_pid[home$home]=$!
done
under=(nsenter --net=/run/netns/home1)
doctor "$BROKER" --token "$PEER_TOKEN"
says ok dial "IPv4 203.0.113.2:7700 answers"
says warning reach "others cannot dial this machine: it is 192.168.1.2, and the broker sees 203.0.113.1: a NAT .*changes ports.*symmetric"
says ok relay "answers"
says '(ok|warning)' uplink 'Mbit/s with the broker'
ends_with 0
for home in 1 2; do wait_for_log "$work/home$home.log" "info joined"; done
doctor home2
says ok peer "home2: pool"
says warning reach "through the broker's relay.*--listen"
ends_with 0

# A name with an address of each kind, of which one swallows everything.
printf '%s\n' "127.0.0.1 localhost" "2001:db8::2 broker.test" "203.0.113.2 broker.test" >"$work/hosts"
mount --bind "$work/hosts" /etc/hosts
doctor broker.test:7700 --token "$WEFT_TOKEN"
says ok name "2001:db8::2"
says warning dial "IPv6 \[2001:db8::2\]:7700 does not answer: .*mend IPv6"
says ok dial "IPv4 203.0.113.2:7700 answers"
says ok token "lets a submitter in"
ends_with 0

# The network's own page answers instead of the broker; then a proxy that shows a certificate of its own.
if [ -n "${WEFT_WEB_FAKE_SERVER:-}" ]; then
  under=(nsenter --net=/run/netns/home2)
  in_between() {  # in_between ARGS of the server
    local line port
    coproc server { exec nsenter --net=/run/netns/home2 "$WEFT_WEB_FAKE_SERVER" "$@" 2>>"$work/server.log"; }
    read -r -t 60 line <&"${server[0]}" || fail "nobody stands between"
    port=${line##*:}; port=${port%%/*}
    in_net home2 nft -f - <<NFT
table ip between
delete table ip between
table ip between {
  chain out {
    type nat hook output priority -100
    tcp dport 7700 redirect to :$port
  }
}
NFT
  }
  in_between
  doctor "$BROKER" --token "$PEER_TOKEN"
  says stops tls "HTTP and no TLS \(HTTP/1.1 .*captive portal.*log in to this network"
  is_silent_of token
  ends_with 1
  eval "exec ${server[1]}>&-"; wait "$server_PID"
  in_between --tls "$work"
  doctor "$BROKER" --token "$PEER_TOKEN"
  says stops tls "the certificate of localhost, issued by localhost: a proxy that reads TLS"
  is_silent_of token
  ends_with 1
  eval "exec ${server[1]}>&-"; wait "$server_PID"
fi
echo "each fault was named"
