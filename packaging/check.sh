#!/usr/bin/env bash
# ./dev package --check: what the packages in build/packages promise, tried in roots of their own. Needs to be root, and the
# distribution's mirror, which apt's own settings name. Changes nothing of this machine; leaves nothing running.
#
#   lintian       no errors
#   bare root     a bare Debian 12: from `apt install ./weft.deb` to a peer that has joined in 60 s, without a network
#   units         systemd-analyze verify; and for real, where a systemd can be booted
#   purge         leaves the broker's data, which it names, and nothing else
#   tarball       on Ubuntu 24.04 if the mirror has it, else beside Debian 12's C library alone
set -euo pipefail
cd "$(dirname "$0")/.."
source packaging/check_roots.sh
packages=$PWD/build/packages
join_seconds_max=60
[ "$(id -u)" = 0 ] || { echo "check: needs root, for roots of its own" >&2; exit 1; }
deb=$(ls "$packages"/weft_*.deb) tarball=$(ls "$packages"/weft-*.tar.gz)
work=$(mktemp -d /var/tmp/weft-check.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
said=() skipped=()
passed() { said+=("$*"); echo "check: $*"; }
skip() { skipped+=("$*"); echo "check: skipped: $*"; }

check_lintian() {
  lintian --allow-root --fail-on error "$packages"/weft*.deb >"$work/lintian" 2>&1 || { cat "$work/lintian" >&2; exit 1; }
  passed "lintian: no errors, $(grep -c '^W:' "$work/lintian" || true) warnings"
}

# ---- the Debian package ------------------------------------------------------------------------------------------------

# In the root: fetches what the package needs, installs without a network, and waits until a peer has joined.
check_join() {
  bare_root debian "$work/root"
  cp "$deb" "$work/root/weft.deb"
  install -m 0755 packaging/check_join.sh "$work/root/check_join.sh"
  in_root "$work/root" sh -ec 'apt-get -qq update; apt-get -qq install -y --no-install-recommends --download-only ./weft.deb' \
    >"$work/fetch" 2>&1 || { cat "$work/fetch" >&2; exit 1; }
  local began=$SECONDS taken
  alone_in_root "$work/root" /check_join.sh deb >"$work/join" 2>&1 || { cat "$work/join" >&2; exit 1; }
  taken=$((SECONDS - began))
  grep -h 'peer_joined' "$work/join"
  [ "$taken" -le "$join_seconds_max" ] || { echo "check: $taken s from apt install to joined, of $join_seconds_max" >&2; exit 1; }
  passed "bare Debian 12: $taken s from apt install to a peer that has joined ($(nproc) cores)"
}

check_documents() {
  local file
  for file in usr/share/man/man1/weft.1.gz usr/share/bash-completion/completions/weft usr/share/zsh/vendor-completions/_weft \
      usr/share/fish/vendor_completions.d/weft.fish usr/share/doc/weft/copyright usr/share/doc/weft/changelog.gz; do
    [ -s "$work/with-documents/$file" ] || { echo "check: the package lacks /$file" >&2; exit 1; }
  done
  man --warnings -l "$work/with-documents/usr/share/man/man1/weft.1.gz" 2>"$work/man" >/dev/null
  [ ! -s "$work/man" ] || { cat "$work/man" >&2; exit 1; }
  bash -n "$work/with-documents/usr/share/bash-completion/completions/weft"
  if file "$work/with-documents/usr/bin/weft" | grep -q 'not stripped'; then
    echo "check: the program in the package has its debug symbols" >&2; exit 1
  fi
  passed "documents: manual page without warnings, completions, copyright, changelog"
}

# The broker knows every setting that its file shows as a comment.
check_settings() {
  local out broker known=yes
  sed -E 's/^# ([a-z_]+: )/\1/; s/^listen: .*/listen: 127.0.0.1:0/' "$work/with-documents/etc/weft/broker.yaml" >"$work/broker.yaml"
  grep -q '^plan_seconds: ' "$work/broker.yaml"
  exec {out}< <(exec unshare --net sh -c 'ip link set lo up; exec "$@"' sh "$work/with-documents/usr/bin/weft" broker \
    --config "$work/broker.yaml" --data-dir "$work/broker" 2>"$work/broker.log")
  broker=$!
  timeout 60 grep -q -m 1 '^weft join broker.example.org:7700 ' <&"$out" || known=no
  kill "$broker" 2>/dev/null || true
  wait "$broker" || true
  exec {out}<&-
  [ "$known" = yes ] || { cat "$work/broker.log" >&2; exit 1; }
  passed "settings: the broker knows all that broker.yaml shows"
}

# A package that was unpacked with nothing of a debugger in it is explained by the other package's files.
check_debug() {
  local symbols
  symbols=$(ls "$packages"/weft-dbgsym_*.deb)
  dpkg-deb -x "$symbols" "$work/symbols"
  if ! command -v gdb >/dev/null; then skip "debug symbols: no gdb here"; return; fi
  local line
  line=$(unshare -m sh -c "mount -t tmpfs none '$PWD/build/release'; gdb -q -batch -iex 'set debug-file-directory $work/symbols/usr/lib/debug' \
    -ex 'info line weft::dag::differentiate' '$work/with-documents/usr/bin/weft'" 2>/dev/null)
  [[ $line == *autodiff.cc* ]] || { echo "check: gdb finds no lines by weft-dbgsym: $line" >&2; exit 1; }
  passed "debug symbols: gdb reads lines from weft-dbgsym"
}

check_units() {
  in_root "$work/root" sh -ec 'apt-get -qq install -y --no-install-recommends systemd systemd-sysv dbus libpam-systemd dbus-user-session' \
    >"$work/systemd" 2>&1 || { cat "$work/systemd" >&2; exit 1; }
  in_root "$work/root" dpkg-reconfigure weft >/dev/null 2>&1  # systemd is there now: the broker's user
  in_root "$work/root" systemd-analyze --man=no verify weft-broker.service 2>&1 | tee "$work/verify"
  rm -rf "$work/root/root/.config"
  in_root "$work/root" env HOME=/root XDG_RUNTIME_DIR=/tmp sh -ec 'weft service install 127.0.0.1:7700 --token "$(cat /peer.token)" --no-start >/dev/null
    systemd-analyze --man=no --user verify /root/.config/systemd/user/weft-peer.service; rm -r /root/.config' 2>&1 | tee -a "$work/verify"
  if grep -q 'weft' "$work/verify"; then echo "check: systemd-analyze verify complains" >&2; exit 1; fi
  passed "units: systemd-analyze verify has nothing to say of broker and peer"
}

check_boot() {
  install -m 0755 packaging/check_boot.sh "$work/root/check_boot.sh"
  mkdir -p "$work/root/job"
  cp examples/gpt/job.yaml examples/gpt/model.onnx "$work/root/job"
  cat docs/*.md >"$work/root/job/corpus.txt"
  if ! boot_root "$work/root" /check_boot.sh >"$work/boot" 2>&1; then
    if grep -q '^check_boot: ' "$work/root/boot.log" 2>/dev/null; then cat "$work/root/boot.log" >&2; exit 1; fi
    skip "units for real: no systemd can be booted here ($(tail -1 "$work/boot"))"
    return
  fi
  sed -n 's/^check_boot: /  /p' "$work/root/boot.log"
  grep -q '^check_boot: all is well' "$work/root/boot.log" || { cat "$work/root/boot.log" >&2; exit 1; }
  passed "units for real: broker as a system service, peer as a user's, a job of two steps"
}

check_purge() {
  mkdir -p "$work/root/var/lib/weft-broker"
  touch "$work/root/var/lib/weft-broker/identity"
  in_root "$work/root" apt-get -qq purge -y weft >"$work/purge" 2>&1 || { cat "$work/purge" >&2; exit 1; }
  grep -q 'stay in /var/lib/weft-broker' "$work/purge" || { cat "$work/purge"; echo "check: purge does not name what stays" >&2; exit 1; }
  local left
  left=$(find "$work/root" -xdev -iname '*weft*' ! -path "$work/root/proc/*" -printf '/%P\n' | grep -vE '^/(weft[.]deb$|var/lib/weft-broker(/|$)|var/log/)' || true)
  [ -z "$left" ] || { echo "check: purge leaves: $left" >&2; exit 1; }
  [ ! -e "$work/root/etc/weft" ] || { echo "check: purge leaves /etc/weft" >&2; exit 1; }
  # Without data, nothing at all.
  in_root "$work/root" sh -ec 'rm -r /var/lib/weft-broker; apt-get -qq install -y --no-install-recommends ./weft.deb; apt-get -qq purge -y weft
    ! getent passwd weft-broker' >"$work/purge" 2>&1 || { cat "$work/purge" >&2; exit 1; }
  passed "purge: leaves the broker's data and names them; without data it leaves nothing"
}

# ---- the tarball --------------------------------------------------------------------------------------------------------

check_tarball() {
  packaging/symbol_versions.sh "$tarball"
  local root=$work/elsewhere where
  if bare_root ubuntu "$root"; then where="Ubuntu 24.04"; else
    where="Debian 12's C library alone"
    c_library_alone "$root"
  fi
  mkdir -p "$root/opt/some where"
  tar -xzf "$tarball" -C "$root/opt/some where" --strip-components=1
  if [ -x "$root/bin/sh" ]; then
    install -m 0755 packaging/check_join.sh "$root/check_join.sh"
    alone_in_root "$root" /check_join.sh "/opt/some where/bin/weft" >"$work/join" 2>&1 || { cat "$work/join" >&2; exit 1; }
  else
    alone_in_root "$root" "/opt/some where/bin/weft" --version
  fi
  passed "tarball: runs on $where from a folder of any name"
}

check_lintian
dpkg-deb -x "$deb" "$work/with-documents"
check_documents
check_settings
check_debug
check_join
check_units
check_boot
check_purge
check_tarball
echo "check: ${#said[@]} passed"
for one in "${skipped[@]}"; do echo "check: skipped: $one"; done
