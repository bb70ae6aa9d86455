#!/usr/bin/env bash
# A model that peers train and then serve together: a broker with its HTTP door, and peers that have a stage each. What is
# asked over the door has the text of one machine, also while peers of stages are killed, the entry's among them, and while
# the broker is. The entry guesses tokens ahead.
#   serve_peers.sh [--quick] [--kills N]
source "$(dirname "$0")/cluster.sh"
kills=12 broker_kills=3
while [ $# -gt 0 ]; do
  case $1 in
    --quick) kills=3 ;;
    --kills) kills=$2; shift ;;
    *) echo "usage: serve_peers.sh [--quick] [--kills N]" >&2; exit 2 ;;
  esac
  shift
done
cluster_begin
cp -r examples/gpt "$work/gpt"
made_text 60000 >"$work/gpt/corpus.txt"
peers=(a b c d e)
prompt='Once upon' texts=8 length=110  # 128 positions, the prompt's among them

# Links of 8 ms round trip: a text takes more than a second, so that all are under way when somebody is killed.
{
  echo 'devices:'
  for name in "${peers[@]}"; do echo "  - {name: $name, type: rtx3080, region: here}"; done
  echo 'broker: here'
  echo 'regions: {within: {round_trip_ms: 8, bandwidth: 1Gbit}}'
} >"$work/lines.yaml"
peer() { start_peer "$1" --device cpu:1 --listen 127.0.0.1:0 --emulate "$work/lines.yaml" --region here --as "$1"; }
generate() { "$weft" generate "$@" --prompt "$prompt" --length "$length"; }
from_door() { generate --url "http://$url/v1" --seed "$1"; }
expect() {  # expect WHAT PATTERN TEXT
  grep -q -- "$2" <<<"$3" || fail "$1: expected $2 in: ${3:0:600}"
  echo "ok: $1"
}

start_broker_with_door --lease 3s
for name in "${peers[@]}"; do peer "$name"; done
# The peers that train it serve it, and no weight is sent again.
"$weft" submit "$work/gpt/job.yaml" --set steps=8 --set evaluate_every=null --set placement.stages=3 \
  --set "output=$work/trained.onnx" >"$work/train.log" 2>&1 || fail "training: $(tail -n 3 "$work/train.log")"
submit_job "$work/gpt/serve.yaml" --set placement.stages=3 --set serve.draft=ngram
grep -q 'the broker has everything already' "$work/submit.log" || fail "weights were sent again"
echo "ok: what job 1 has learnt is served, and none of it is sent again"
wait_for_log "$work/broker.log" 'reason="serves as gpt"'
for ((seed = 1; seed <= texts; ++seed)); do generate "$work/trained.inference.onnx" --threads 1 --seed "$seed" >"$work/file.$seed"; done

# All at once: each the text that it has alone, on one machine. They come through pipes, and each has begun.
ask_all() {
  local seed pipe
  asked=() texts_of=()
  for ((seed = 1; seed <= texts; ++seed)); do
    rm -f "$work/door.$seed.pipe"; mkfifo "$work/door.$seed.pipe"
    from_door "$seed" >"$work/door.$seed.pipe" 2>"$work/door.$seed.err" & asked+=($!)
    exec {pipe}<"$work/door.$seed.pipe"
    texts_of+=("$pipe")
  done
  for ((seed = 1; seed <= texts; ++seed)); do
    head -c $((${#prompt} + 1)) <&"${texts_of[seed - 1]}" >"$work/door.$seed"
  done
}
take_all() {  # take_all WHAT
  local seed pipe
  for ((seed = 1; seed <= texts; ++seed)); do
    pipe=${texts_of[seed - 1]}
    cat <&"$pipe" >>"$work/door.$seed"
    exec {pipe}<&-
    wait "${asked[seed - 1]}" || fail "$1: a text ended otherwise: $(cat "$work/door.$seed.err")"
    cmp -s "$work/file.$seed" "$work/door.$seed" || fail "$1: seed $seed has another text than on one machine"
  done
  echo "ok: $1: $texts texts are those of one machine"
}
from_door 1 >"$work/alone"
same_file "three stages and one machine" "$work/file.1" "$work/alone"
ask_all
take_all "at once"
expect "tokens were guessed ahead" '^weft_serve_guesses_total{model="gpt"} [1-9]' "$(curl -s "http://$url/metrics")"
expect "the status says what it serves" 'serves as gpt' "$("$weft" status "$job_number")"

stage_of() { "$weft" status "$job_number" | awk -v stage="$1" '$1 == "stage" && $2 == stage { print $3 }'; }
for ((kill = 0; kill < kills; ++kill)); do
  stage=$((kill % 3 + 1)) # the entry is stage 1
  victim=$(stage_of "$stage")
  [ -n "$victim" ] || fail "nobody has stage $stage"
  ask_all
  lose_peer "$victim"
  take_all "the peer of stage $stage was killed"
  peer "$victim"
done

# The broker itself: streams go on with the next one, on the same ports.
for ((kill = 0; kill < broker_kills; ++kill)); do
  ask_all
  end_process KILL "$broker_pid"
  start_broker_with_door --lease 3s
  take_all "the broker was killed"
done
expect "streams were kept" "weft_serve_requests_kept" "$(curl -s "http://$url/metrics")"
[ "$(stat -c %a "$work/broker/requests.sqlite")" = 600 ] || fail "others can read what was asked"

"$weft" stop "$job_number" >/dev/null
finish_job
[ "$RESULT" = stopped ] || fail "the job ended otherwise: $LINE"
if from_door 1 2>"$work/refused" >/dev/null; then fail "a job that was stopped goes on serving"; fi
expect "a model that was stopped is not there" "serves no model" "$(cat "$work/refused")"
