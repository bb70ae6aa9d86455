#!/bin/bash
# In a booted root of check.sh: the broker as a system service, a peer as the service of a user who lingers.
set -eu
say() { echo "check_boot: $*"; }
trap 'say "failed in line $LINENO"; journalctl --no-pager -n 60' ERR
await() { # a line of a unit's journal
  timeout 60 grep -m 1 -- "$2" < <(exec journalctl --no-pager --lines=all --follow --unit "$1")
}
weft=/usr/bin/weft data=/var/lib/weft-broker
[ "$(systemctl is-enabled weft-broker || true)" = disabled ] && say "the broker waits until it is enabled"
systemctl enable --now weft-broker
await weft-broker 'no token is written' >/dev/null
[ "$(stat -c '%U %a' $data)" = "weft-broker 700" ] && say "the broker's data belong to weft-broker alone"
line=$(runuser -u weft-broker -- $weft token join-line --data-dir $data --advertise 127.0.0.1:7700)
useradd --create-home tester
loginctl enable-linger tester
id=$(id -u tester)
systemctl start "user@$id"  # returns when it is up
as_tester() { runuser -u tester -- env HOME=/home/tester XDG_RUNTIME_DIR="/run/user/$id" "$@"; }
as_tester $weft service install 127.0.0.1:7700 --token "$(echo "$line" | cut -d' ' -f5)" --device cpu:1
await weft-broker peer_joined && say "the user's peer has joined"
as_tester $weft service status && say "its status says so"
# A job, so that the broker plans within what its unit lets it do.
token=$(runuser -u weft-broker -- $weft token create --role submitter --data-dir $data)
as_tester $weft submit /job/job.yaml --broker 127.0.0.1:7700 --token "$token" --set steps=2 --set batch_size=8 \
  --set output=/home/tester/trained.onnx
[ -s /home/tester/trained.onnx ] && say "a job of two steps is planned and trained"
as_tester $weft pause --status && say "it can be paused by its user"
as_tester $weft service remove
await weft-broker peer_lost >/dev/null && say "it left when its service was removed"
systemd-analyze security --no-pager weft-broker.service | tail -1
systemctl disable --now weft-broker
[ "$(systemctl show -p Result --value weft-broker)" = success ] && say "the broker stopped by itself"
# As it was before, but for the broker's data, which the next check looks after.
loginctl terminate-user tester
userdel -rf tester 2>/dev/null
rm -rf /var/lib/systemd/linger/tester $data/*
say "all is well"
