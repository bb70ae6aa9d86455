# A broker and peers as processes of this shell, for the scripts that source it: started on free ports, known by
# their process ids, ended on exit whatever happens. Nothing here waits by the clock: it reads what they print.
#   cluster_begin; start_broker [ARGS]; start_peer NAME [ARGS]; weft_here submit ...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
weft=${WEFT:-build/release/weft}
declare -A peer_pid=()
broker_pid=

cluster_begin() {
  work=$(mktemp -d)
  export XDG_CONFIG_HOME=$work/config
  trap cluster_end EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

cluster_end() {
  local status=$? pid
  trap - EXIT
  for pid in "${peer_pid[@]}" $broker_pid; do kill -CONT "$pid" 2>/dev/null || true; kill -KILL "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  if [ "$status" -ne 0 ] && [ -n "${KEEP:-}" ]; then echo "kept: $work" >&2; else rm -rf "$work"; fi
  exit "$status"
}

# Sets BROKER (host:port), PEER_TOKEN, and WEFT_BROKER and WEFT_TOKEN for clients. Started again on the same directory
# it takes the same port.
start_broker() {
  local line pipe=$work/broker.out
  rm -f "$pipe"; mkfifo "$pipe"
  "$weft" broker --data-dir "$work/broker" --listen "${BROKER:-127.0.0.1:0}" "$@" >"$pipe" 2>>"$work/broker.log" &
  broker_pid=$!
  exec {broker_out}<"$pipe"
  PEER_TOKEN=
  while [ -z "$PEER_TOKEN" ] && read -r -t 60 line <&"$broker_out"; do
    case $line in
      "weft join "*) BROKER=$(cut -d' ' -f3 <<<"$line"); PEER_TOKEN=$(cut -d' ' -f5 <<<"$line") ;;
    esac
  done
  [ -n "$PEER_TOKEN" ] || { echo "the broker did not start:" >&2; cat "$work/broker.log" >&2; exit 1; }
  if [ -z "${WEFT_TOKEN:-}" ]; then
    WEFT_TOKEN=$("$weft" token create --role submitter --data-dir "$work/broker" --format json | sed 's/.*"token": *"\([^"]*\)".*/\1/')
  fi
  export WEFT_BROKER=$BROKER WEFT_TOKEN
}

start_peer() {
  local name=$1; shift
  "$weft" join "$BROKER" --token "$PEER_TOKEN" --name "$name" --data-dir "$work/peer-$name" "$@" \
    >>"$work/$name.log" 2>&1 &
  peer_pid[$name]=$!
}

# Ends a process of ours and collects it.
end_process() {
  kill "-$1" "$2" 2>/dev/null || true
  wait "$2" 2>/dev/null || true
}

same_file() {  # same_file WHAT A B
  if cmp -s "$2" "$3"; then echo "ok: $1: the same bytes"; else echo "FAILED: $1: $2 and $3 differ" >&2; exit 1; fi
}
