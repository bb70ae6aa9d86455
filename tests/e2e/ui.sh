#!/usr/bin/env bash
# The page of `weft ui` in a real browser, before a broker and three peers: what it shows is what `weft logs` says, a killed peer
# is marked, nothing scrolls sideways, no request leaves this machine, and who has no business there is refused.
#   ui.sh [--quick] [--long MINUTES] [--pictures FOLDER]
# --long keeps the page open for so long and says what that costs; --pictures writes those of the documents, of a job that takes minutes.
# Without chromium or python3 it is skipped.
source "$(dirname "$0")/cluster.sh"
minutes=0 pictures=''
while [ $# -gt 0 ]; do
  case $1 in
    --quick) ;;
    --long) minutes=$2; shift ;;
    --pictures) pictures=$(realpath "$2"); shift ;;
    *) echo "usage: ui.sh [--quick] [--long MINUTES] [--pictures FOLDER]" >&2; exit 2 ;;
  esac
  shift
done
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
  { echo "skipped: there is no chromium here" >&2; exit 77; }
python=$(command -v /usr/bin/python3 || command -v python3) || { echo "skipped: there is no python3 here" >&2; exit 77; }
cluster_begin

# start_ui NAME [ARGS]: sets `page`, its address.
start_ui() {
  local name=$1 line out pipe=$work/$1.out
  shift
  mkfifo "$pipe"
  "$weft" ui --listen 127.0.0.1:0 "$@" >"$pipe" 2>"$work/$name.log" &
  peer_pid[$name]=$!
  exec {out}<"$pipe"
  page=
  while [ -z "$page" ] && read -r -t $((60 * slower)) line <&"$out"; do
    [[ $line != *http://* ]] || page=$(grep -o 'http://[^" ]*' <<<"$line")
  done
  [ -n "$page" ] || fail "weft ui does not say where its page is"
}

# A model to try: one that answers what the test knows.
fake=${WEFT_WEB_FAKE_SERVER:-build/release/weft_web_fake_server}
mkfifo "$work/fake.in" "$work/fake.out"
"$fake" <"$work/fake.in" >"$work/fake.out" 2>"$work/fake.log" &
peer_pid[fake]=$!
exec {fake_in}>"$work/fake.in" {fake_out}<"$work/fake.out"
read -r -t $((60 * slower)) models <&"$fake_out"

start_broker --lease 3s --copy-rate 1Gbit
regions=(oregon virginia frankfurt) names=(lena "<b>mika</b>" omar)
[ -z "$pictures" ] || names[1]=mika
for i in 0 1 2; do
  peer=${names[$i]//[^a-z]/}
  "$weft" join "$BROKER" --token "$PEER_TOKEN" --name "${names[$i]}" --data-dir "$work/peer-$peer" --device cpu:1 --listen 127.0.0.1:0 \
    --region "${regions[$i]}" >>"$work/$peer.log" 2>&1 &
  peer_pid[$peer]=$!
done
refused() {  # refused WHAT WORDS COMMAND...
  local code=0 said
  said=$("${@:3}" 2>&1) || code=$?
  [ "$code" = 2 ] && grep -q -- "$2" <<<"$said" || fail "$1: exit status $code, $said"
  echo "ok: $1"
}
refused "all addresses need a name to be called by" "say by --host" "$weft" ui --listen 0.0.0.0:0
refused "a name that is none" "--host" "$weft" ui --listen 127.0.0.1:0 --host "a b"
start_ui page --url "${models/localhost/127.0.0.1}"
open_page=$page
start_ui locked --key --format json --qr
locked_page=$page

if [ -n "$pictures" ]; then
  set -- examples/fashion-mnist/job.yaml --set evaluate_every=40 --set steps=600 --set schedule.warmup_steps=20
else
  gunzip -c tests/numerics/densenet/model.onnx.gz >"$work/densenet.onnx"
  cp tests/numerics/densenet/{job.yaml,data.npz} "$work/"
  set -- "$work/job.yaml" --set steps=1000000 --set evaluate_every=20
fi
submit_job "$@" --set "output=$work/trained.onnx" --set microbatch_size=4 --set placement.stages=2 --set "compression={policy: uniform, codec: int8}"
exec {events}<&-  # nobody reads them here: it would stand still once the pipe is full
kill "$submit_pid"; wait "$submit_pid" 2>/dev/null || true; submit_pid=

export CHROMIUM=$chromium WEFT=$weft SLOWER=$slower OPEN_PAGE=$open_page LOCKED_PAGE=$locked_page JOB=$job_number WORK=$work MINUTES=$minutes PICTURES=$pictures
export PEERS="${names[0]}=${peer_pid[lena]},${names[1]}=${peer_pid[${names[1]//[^a-z]/}]},${names[2]}=${peer_pid[omar]}" UI_PID=${peer_pid[page]} BROKER_PID=$broker_pid
"$python" tests/e2e/ui_page.py || fail "the page is not as it should be"
kill -INT "${peer_pid[page]}"
wait "${peer_pid[page]}" || fail "weft ui ended with exit status $?"
unset "peer_pid[page]"
echo "ok: Ctrl-C ends it with exit status 0"
