# Roots of other distributions for check.sh: made by debootstrap from the mirror that apt uses, kept packed in
# build/packages/roots for the next time.

mirror() { apt-get indextargets --format '$(CREATED_BY) $(CODENAME) $(REPO_URI)' | awk '$1 == "Packages" && $2 == "bookworm" { print $3; exit }'; }

# Ubuntu's key for archives, taken from the mirror and known by its fingerprint: Debian 12 has no package of it.
ubuntu_keyring() {
  local from=$1 into=$2 key=F6ECB3762474EDA9D21B7022871920D1991BC93C work
  work=$(mktemp -d)
  /usr/lib/apt/apt-helper download-file "$from/pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb" "$work/deb" >/dev/null 2>&1 &&
    dpkg-deb -x "$work/deb" "$work" &&
    gpg --homedir "$work" --quiet --no-default-keyring --keyring "$work/usr/share/keyrings/ubuntu-archive-keyring.gpg" \
      --export "$key" >"$into" 2>/dev/null && [ -s "$into" ]
  local status=$?
  rm -rf "$work"
  return $status
}

# bare_root debian|ubuntu FOLDER: false where there is no such root to be had.
bare_root() {
  local kind=$1 folder=$2 suite=bookworm from keyring packed script=
  from=$(mirror)
  [ -n "$from" ] || { echo "check: apt names no mirror of Debian 12" >&2; return 1; }
  keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  if [ "$kind" = ubuntu ]; then
    suite=noble from=${from%/debian*}/ubuntu keyring=$folder.gpg script=/usr/share/debootstrap/scripts/gutsy  # of all later Ubuntus
  fi
  packed=build/packages/roots/$suite.tar
  if [ ! -e "$packed" ]; then
    if [ "$kind" = ubuntu ]; then ubuntu_keyring "$from" "$keyring" || return 1; fi
    mkdir -p "$(dirname "$packed")"
    debootstrap --variant=minbase --keyring="$keyring" "$suite" "$folder" "$from" $script >"$folder.log" 2>&1 ||
      { tail -3 "$folder.log"; rm -rf "$folder"; return 1; }
    tar -C "$folder" -cf "$packed.new" . && mv "$packed.new" "$packed"
    return
  fi
  mkdir -p "$folder" && tar -C "$folder" -xf "$packed"
}

# A folder with Debian 12's C library and nothing else.
c_library_alone() {
  local folder=$1
  mkdir -p "$folder/fetched" "$folder/proc" "$folder/tmp"
  (cd "$folder/fetched" && apt-get -qq download libc6/bookworm 2>/dev/null && dpkg-deb -x libc6_*.deb "$folder")
  rm -r "$folder/fetched"
}

# A command in a root, with this machine's network; and without any but a loopback.
in_root() {
  local folder=$1
  shift
  cp /etc/resolv.conf "$folder/etc/resolv.conf"
  unshare --mount --pid --fork sh -ec 'folder=$1; shift; mount -t proc proc "$folder/proc"; mount --rbind /dev "$folder/dev"
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8; exec chroot "$folder" "$@"' sh "$folder" "$@"
}
alone_in_root() {
  local folder=$1
  shift
  unshare --net --mount --pid --fork sh -ec 'folder=$1; shift; ip link set lo up; mount -t proc proc "$folder/proc"
    if [ -d "$folder/dev" ]; then mount --rbind /dev "$folder/dev"; fi
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8; exec chroot "$folder" "$@"' sh "$folder" "$@"
}

# Boots the root's systemd, which runs a command as its last service and powers off; what the command prints goes to
# /boot.log in the root.
boot_root() {
  local folder=$1 command=$2
  cat >"$folder/etc/systemd/system/check.service" <<UNIT
[Unit]
After=multi-user.target
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
ExecStart=$command
StandardOutput=file:/boot.log
StandardError=inherit
TimeoutStartSec=120
UNIT
  ln -sf /etc/systemd/system/check.service "$folder/etc/systemd/system/default.target.wants/check.service" 2>/dev/null ||
    { mkdir -p "$folder/etc/systemd/system/multi-user.target.wants"
      ln -sf /etc/systemd/system/check.service "$folder/etc/systemd/system/multi-user.target.wants/check.service"; }
  timeout 180 systemd-nspawn --quiet --boot --private-network --register=no --keep-unit --directory="$folder" --console=pipe </dev/null
  local status=$?
  rm -f "$folder"/etc/systemd/system/*.wants/check.service "$folder/etc/systemd/system/check.service"
  [ "$status" = 0 ] && [ -s "$folder/boot.log" ]
}
