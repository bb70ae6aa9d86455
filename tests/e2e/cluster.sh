# A broker and peers as processes of this shell, for the scripts that source it: started on free ports, known by
# their process ids, ended on exit whatever happens. Nothing here waits by the clock: it reads what they print.
#   cluster_begin; start_broker [ARGS]; start_peer NAME [ARGS]; follow_job JOB [ARGS]; wait_for_step 20; finish_job
# KEEP=1 keeps the working directory of a run that failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
weft=${WEFT:-build/release/weft}
declare -A peer_pid=()
broker_pid='' submit_pid=''

# Prints what a sanitizer has said of any of these processes, whatever became of the process.
found_by_sanitizers() { grep -shE -A 60 '(WARNING|ERROR|FATAL): [A-Za-z]*Sanitizer|: runtime error: ' "$work"/*.log >&2; }
is_sanitized() { grep -q 'lib[at]san' <<<"$(ldd "$weft" 2>/dev/null)"; }
# What is measured or bounded is memory, and a sanitizer takes several times as much of it.
skip_under_sanitizers() {
  if is_sanitized; then echo "skipped: a sanitizer's memory would be counted" >&2; exit 77; fi
}
slower=1  # how much longer everything takes
broker_more=()  # arguments of every broker
if is_sanitized; then slower=10 broker_more=(--plan-seconds 600); fi

cluster_begin() {
  work=$(mktemp -d)
  export XDG_CONFIG_HOME=$work/config XDG_RUNTIME_DIR=$work/runtime  # where peers are paused: nobody else's
  unset WEFT_BROKER WEFT_TOKEN BROKER  # of whoever runs this
  trap cluster_end EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

cluster_end() {
  local status=$? pid
  trap - EXIT
  exec 3>&2 2>/dev/null  # the shell would tell of each
  for pid in "${peer_pid[@]}" $submit_pid $broker_pid; do kill -CONT "$pid" 2>/dev/null || true; kill -KILL "$pid" 2>/dev/null || true; done
  wait || true
  exec 2>&3
  if found_by_sanitizers; then status=1; fi
  if [ "$status" -ne 0 ] && [ -n "${KEEP:-}" ]; then echo "kept: $work" >&2; else rm -rf "$work"; fi
  exit "$status"
}

# Sets BROKER (host:port), PEER_TOKEN, and WEFT_BROKER and WEFT_TOKEN for clients. Started again on the same directory
# it takes the same port. `broker_under` is the command that it is started by, if any.
broker_under=()
start_broker() {
  local line pipe=$work/broker.out
  rm -f "$pipe"; mkfifo "$pipe"
  "${broker_under[@]}" "$weft" broker --data-dir "$work/broker" --listen "${BROKER:-127.0.0.1:0}" "${broker_more[@]}" "$@" >"$pipe" 2>>"$work/broker.log" &
  broker_pid=$!
  exec {broker_out}<"$pipe"
  PEER_TOKEN=
  # Without submitter tokens it prints one.
  while { [ -z "$PEER_TOKEN" ] || [ -z "${WEFT_TOKEN:-}" ]; } && read -r -t $((60 * slower)) line <&"$broker_out"; do
    case $line in
      "weft join "*) BROKER=$(cut -d' ' -f3 <<<"$line"); PEER_TOKEN=$(cut -d' ' -f5 <<<"$line") ;;
      "submitter token: "*) WEFT_TOKEN=$(cut -d' ' -f3 <<<"$line") ;;
    esac
  done
  [ -n "$PEER_TOKEN" ] || { echo "the broker did not start:" >&2; cat "$work/broker.log" >&2; exit 1; }
  export WEFT_BROKER=$BROKER WEFT_TOKEN
}

# A broker with its HTTP door, on the same one when it is started again. Sets `url` (host:port).
start_broker_with_door() {
  local line
  start_broker --http "${url:-127.0.0.1:0}" "$@"
  url=
  while [ -z "$url" ] && read -r -t $((60 * slower)) line <&"$broker_out"; do
    [[ $line != "served models: http://"* ]] || url=${line#served models: http://}
  done
  url=${url%/v1}
  [ -n "$url" ] || fail "the broker does not say where models are served"
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
lose_peer() {  # lose_peer NAME: SIGKILL
  end_process KILL "${peer_pid[$1]}"
  unset "peer_pid[$1]"
}

fail() { echo "FAILED: $*" >&2; tail -n 3 "$work"/*.log >&2 || true; exit 1; }

same_file() {  # same_file WHAT A B
  if cmp -s "$2" "$3"; then echo "ok: $1: the same bytes"; else echo "FAILED: $1: $2 and $3 differ" >&2; exit 1; fi
}

field() {  # the first of the name in each JSON line
  awk -v key="\"$1\":" '{ at = index($0, key); text = at ? substr($0, at + length(key)) : ""; sub(/^ *"?/, "", text); sub(/[",}].*/, "", text); print text }'
}
microseconds() { local now=$EPOCHREALTIME; echo "${now/[.,]/}"; }

# A model of tests/numerics and its job, in the working directory.
take_model() {
  gunzip -c "tests/numerics/$1/model.onnx.gz" >"$work/model.onnx"
  cp "tests/numerics/$1/job.yaml" "tests/numerics/$1/data.npz" "$work/"
}

# Sentences of a few words in an order that is drawn, the same on every machine: what a small model learns of it in a few
# steps changes with no text of ours.
made_text() {  # made_text BYTES
  awk -v bytes="$1" 'BEGIN {
    n = split("the a one each some every peer stage tensor link step job model layer batch broker sends reads keeps learns waits " \
              "computes updates copies on over with after before without slow fast small large late ready", word, " ")
    state = 20261
    while (made < bytes) {
      line = ""
      for (left = 4 + (state = (state * 16807) % 2147483647) % 9; left > 0; left--)
        line = line (line == "" ? "" : " ") word[1 + int((state = (state * 16807) % 2147483647) / 2147483647 * n)]
      print line "."
      made += length(line) + 2
    }
  }'
}

# The job of a model that weft_bench_model made, with such a text as its corpus: $work/job.yaml. What else it says comes
# on standard input.
made_model_job() {
  made_text 300000 >"$work/corpus.txt"
  cat >"$work/job.yaml" <<YAML
format: 1
model: model.onnx
task: train
inputs: {tokens: tokens}
loss: {type: cross_entropy, logits: logits, labels: targets}
batch_size: 4
microbatch_size: 2
optimizer: {type: adamw, learning_rate: 1e-3}
output: trained.onnx
YAML
  cat >>"$work/job.yaml"
}

# ---- one job and its events. They are the clock of these scripts: all are kept in $work/events.

follow_job() {  # follow_job JOB [ARGS]: submits it and follows it
  "$weft" submit "$@" --format json >"$work/events.pipe" 2>>"$work/submit.log" &
  submit_pid=$!
}
open_events() { rm -f "$work/events.pipe"; mkfifo "$work/events.pipe"; }
# Sets LINE to the next event. Nothing for SECONDS (default 120) is a failure.
next_event() {
  read -r -t $((${1:-120} * slower)) LINE <&"$events" || fail "no event for $((${1:-120} * slower)) s; the last was: $LINE"
  printf '%s\n' "$LINE" >>"$work/events"
}
submit_job() {  # submit_job JOB [ARGS]
  open_events
  follow_job "$@"
  exec {events}<"$work/events.pipe"
  : >"$work/events"
  LINE=
  next_event
  case $LINE in *'"event":"submitted"'*) job_number=$(field job <<<"$LINE") ;; *) fail "the job was not taken: $LINE" ;; esac
}
# Until an event that has the text; sets LINE. The job's end before that is a failure.
wait_for_event() {  # wait_for_event TEXT [SECONDS]
  while next_event "${2:-120}"; do
    case $LINE in
      *"$1"*) return ;;
      *'"event":"result"'*) fail "the job ended before: $1" ;;
    esac
  done
}
# Until a step at or after the number is committed; sets STEP.
wait_for_step() {
  while wait_for_event '"event":"step"'; do
    take_step
    if [ "$STEP" -ge "$1" ]; then return; fi
  done
}
take_step() { [[ $LINE =~ \"step\":\ ?([0-9]+) ]] && STEP=${BASH_REMATCH[1]}; }
next_step() { wait_for_event '"event":"step"'; take_step; }
# After a loss: until the run goes on and has committed a step.
wait_for_recovery() {
  wait_for_event '"event":"state"' "${1:-120}"
  until [[ $LINE == *'"state":"running"'* ]]; do wait_for_event '"event":"state"' "${1:-120}"; done
  next_step
}
finish_job() {  # to the job's end, which must be a good one: RESULT is its status
  while [[ $LINE != *'"event":"result"'* ]]; do next_event; done
  RESULT=$(field status <<<"$LINE")
  wait "$submit_pid" || [ "$RESULT" = stopped ] || fail "weft submit ended with status $?: $LINE"
}
# Ends a job that has many more steps than anybody waits for: it still runs when something is to happen to it, though peers
# are slow to come, and ends within minutes where that never happens. STEPS is how many it made, and FILE what it learnt. Its
# schedule must not depend on the number.
stop_job() {  # stop_job FILE
  "$weft" stop "$job_number" >/dev/null
  finish_job
  [ "$RESULT" = stopped ] || fail "the job ended otherwise: $LINE"
  STEPS=$(field steps <<<"$LINE")
  local record=${1%.onnx}.rounds.jsonl
  [ ! -e "$record" ] || mv "$record" "$work/submitted.rounds.jsonl"
  "$weft" fetch "$job_number" -o "$1" >/dev/null
  [ ! -e "$work/submitted.rounds.jsonl" ] || same_file "the record that submit wrote, and fetch" "$work/submitted.rounds.jsonl" "$record"
}
# How many steps the record of a run's rounds has.
steps_of_record() {  # steps_of_record FILE
  sed -n 's/^{"steps_before":[0-9]*,"steps":\[\([0-9,]*\)\].*/\1/p' "$1" | tr ',' '\n' | awk '{ sum += $1 } END { print sum + 0 }'
}
# Each of the steps 1 to N was committed, in order, and once: the job's log says so.
steps_are_whole() {  # steps_are_whole N
  "$weft" logs "$job_number" --format json | grep '"event":"step"' | field step |
    awk -v n="$1" '{ if ($1 != NR) { print "FAILED: step event " NR " is of step " $1; bad = 1; exit } }
                   END { if (!bad && NR != n) { print "FAILED: " NR " steps in the log, not " n; bad = 1 } exit bad }' >&2 || exit 1
  echo "ok: each of $1 steps was committed once"
}

peers_that_are() { "$weft" peers --format json | grep '"state": *"'"$1"'"' | field name || true; }
active_peers() { peers_that_are active; }
one_of() { local all=("$@"); echo "${all[RANDOM % ${#all[@]}]}"; }
# Until so many peers stand by in the pool; the job's steps are the clock.
wait_for_pool() {
  until [ "$(peers_that_are pool | wc -l)" -ge "$1" ]; do next_step; done
}
# Until a file that a process writes to has a line with the text; sets LINE.
wait_for_log() {  # wait_for_log FILE TEXT [SECONDS]
  local log tail_pid found=
  [ -e "$1" ] || : >>"$1"  # who writes it may not have begun
  exec {log}< <(exec tail -n +1 -f "$1")
  tail_pid=$!
  while [ -z "$found" ] && read -r -t $((${3:-60} * slower)) LINE <&"$log"; do [[ $LINE != *"$2"* ]] || found=1; done
  kill "$tail_pid" 2>/dev/null || true
  exec {log}<&-
  [ -n "$found" ] || fail "$1 does not say: $2"
}
# Of the newest job, which came to both states once: seconds between them.
seconds_between_states() {  # seconds_between_states FROM TO
  grep -E "state=($1|$2) " "$work/broker.log" | tail -n 2 | sed -E 's/^[^T]*T([0-9]+):([0-9]+):([0-9.]+)Z.*/\1 \2 \3/' |
    awk '{ at = $1 * 3600 + $2 * 60 + $3; took = at - last; last = at } END { printf "%.1f", took < 0 ? took + 86400 : took }'
}
# Who is planned with is who has joined: a run of up to so many replicas would begin with fewer.
wait_for_peers() {  # wait_for_peers NAME...
  local name
  for name in "$@"; do wait_for_log "$work/$name.log" 'info joined'; done
}
job_state() { "$weft" status "$job_number" --format json | field state; }
