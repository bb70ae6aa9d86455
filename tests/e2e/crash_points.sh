#!/usr/bin/env bash
# Kills a process that writes to the broker's store and blobs with SIGKILL, again and again, at moments drawn from a
# seed and counted in its own lines: everything that it acknowledged must be there afterwards, and nothing by half.
# Then the same on a disk that is really full. usage: crash_points.sh [--long] [KILLS] [SEED]
set -euo pipefail
cd "$(dirname "$0")/../.."
writer=${STORE_WRITER:-build/release/store_writer}
kills=100
if [ "${1:-}" = --long ]; then kills=1000; shift; fi
kills=${1:-$kills} seed=${2:-$RANDOM}
RANDOM=$seed
echo "crash points: $kills kills, seed $seed"
# A killed process loses nothing that it wrote, synced or not: memory will do, and waits for no disk.
if [ -w /dev/shm ]; then work=$(mktemp -d /dev/shm/weft-crash.XXXXXX); else work=$(mktemp -d); fi
child=
finish() {
  local status=$?
  trap - EXIT
  [ -z "$child" ] || kill -KILL "$child" 2>/dev/null || true
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT

last=0
for ((i = 1; i <= kills; ++i)); do
  # Sometimes it dies while it opens, mostly after some writes; what is under way then is anything.
  left=$((RANDOM % 8))
  exec {lines}< <(exec "$writer" write "$work/data" </dev/null)
  child=$!
  while [ "$left" -gt 0 ] && read -r -t 60 line <&"$lines"; do last=$line left=$((left - 1)); done
  [ "$left" -eq 0 ] || { echo "crash points: the writer ended by itself (seed $seed, kill $i)" >&2; exit 1; }
  for ((spin = RANDOM % 400; spin > 0; --spin)); do :; done
  kill -KILL "$child"
  while read -r line <&"$lines"; do last=$line; done  # acknowledged while it was being killed
  exec {lines}<&-
  wait "$child" 2>/dev/null || true
  child=
  # The last append may be there without its line.
  last=$("$writer" check "$work/data" "$last") || { echo "crash points: LOST (seed $seed, kill $i)" >&2; exit 1; }
done
echo "crash points: all of $last appends are there after $kills kills"

# A full disk: it says so, nothing is lost, and it goes on when there is room. Killed while it is full, too.
full_disk() {
  local disk=$1 line acknowledged=0 before=0 fulls=0 writer_pid
  mount -t tmpfs -o size=6m none "$disk"
  head -c 3m /dev/zero >"$disk/something else"
  coproc life { exec "$writer" write "$disk/data"; }
  writer_pid=$life_PID
  while read -r -t 60 line <&"${life[0]}"; do
    if [ "$line" != full ]; then acknowledged=$line; continue; fi
    fulls=$((fulls + 1))
    case $fulls in
      1|2) echo "again" >&"${life[1]}" ;;                              # still full
      3) before=$acknowledged; rm "$disk/something else"; echo "again" >&"${life[1]}" ;;
      4) break ;;
    esac
  done
  [ "$fulls" -eq 4 ] || { echo "the disk never became full: $acknowledged" >&2; return 1; }
  [ "$acknowledged" -gt "$before" ] || { echo "it did not go on when there was room" >&2; return 1; }
  kill -KILL "$writer_pid"
  wait "$writer_pid" 2>/dev/null || true
  "$writer" check "$disk/data" "$acknowledged" >/dev/null || return 1  # it opens although the disk is full
  echo "crash points: a full disk at $before appends, room, full again at $acknowledged: nothing lost"
}
mkdir "$work/disk"
if unshare -rm true 2>/dev/null; then
  export writer; export -f full_disk
  unshare -rm bash -euo pipefail -c 'full_disk "$1"' full_disk "$work/disk" || { echo "crash points: FAILED on a full disk" >&2; exit 1; }
else
  echo "crash points: no mount namespaces for users here: a full disk is only tried in process (RunTest, StorageCrash)"
fi
