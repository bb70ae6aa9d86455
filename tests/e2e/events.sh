#!/usr/bin/env bash
# Every line that a command prints with --format json is one that docs/events.schema.json knows, and every event there is
# seen; docs/EVENTS.md is what that file makes. Needs python3 with jsonschema.
#   tests/e2e/events.sh
source "$(dirname "$0")/cluster.sh"
/usr/bin/python3 -c 'import jsonschema' 2>/dev/null || { echo "skipped: python3-jsonschema is not installed" >&2; exit 77; }
events=tests/docs/events.py
/usr/bin/python3 $events check
cluster_begin
export XDG_DATA_HOME=$work/data
take_model two_heads
job=$work/job.yaml
lines=$work/lines
mkdir "$lines"
count=0
elsewhere=
# says COMMAND...: its lines are kept, however it ends.
says() {
  count=$((count + 1))
  "$weft" "$@" --format json >"$lines/$count.$1" 2>>"$work/said.log" || true
  [ -s "$lines/$count.$1" ] || fail "nothing was printed: weft $*"
}

# ---- on this machine
printf '%s\n' 'x,y,label' '1,2,a' '3,4,b' >"$work/table.csv"
says help optimizer
says local "$job" --set steps=4 --set evaluate_every=2 --set checkpoint.steps=2 --set "output=$work/local.onnx"
says local "$job" --set steps=4 --set replicas=2 --set "sync={every: 1}" --set "output=$work/replicas.onnx"
says local "$job" --set optimizer.learning_rate=1e30 --set steps=30 --set "output=$work/lost.onnx"
says local "$job" --set freeze=null --set steps=2 --set 'adapters={type: lora, rank: 2, targets: ["*"]}' --set "output=$work/adapted.onnx"
says merge "$work/model.onnx" "$work/adapted.adapter" -o "$work/merged.onnx"
says inspect "$work/model.onnx" --batch 2
says inspect "$work/table.csv"
says predict "$work/local.inference.onnx" "$work/data.npz" -o "$work/out.npz" --input x=image
says profile "$job" --microbatches 1
says plan "$job" --cluster examples/plans/h100x4.yaml
says plan "$job" --cluster examples/plans/h100x4.yaml --compare
says plan "$job" --cluster examples/plans/h100x4.yaml --compare --set replicas=2 --set "sync={every: 10}"
says gradcheck "$work/local.inference.onnx" --directions 1
mkdir "$work/cases"
onnx_cases=/usr/share/libonnx-testdata/data/node
if [ -d "$onnx_cases/test_abs" ]; then cp -r "$onnx_cases/test_abs" "$work/cases/"; else elsewhere="case"; fi
says conformance "$work/cases"
cp examples/gpt/model.onnx "$work/gpt.onnx"
says generate "$work/gpt.onnx" --length 4 --threads 1
printf '%s\n' 'model: gpt.onnx' 'task: serve' 'serve: {name: gpt, sequences_max: 8}' >"$work/serve.yaml"
says plan "$work/serve.yaml" --cluster examples/plans/h100x4.yaml
serves() {  # serves NAME COMMAND...: until it has said one line
  local name=$1; shift
  "$weft" "$@" --format json >"$lines/0.$name" 2>>"$work/$name.log" &
  peer_pid[$name]=$!
  wait_for_log "$lines/0.$name" '"event"'
  end_process TERM "${peer_pid[$name]}"
  unset "peer_pid[$name]"
}
serves serve serve "$work/gpt.onnx" --http 127.0.0.1:0 --threads 1 --skip-check
says ops
says status nonsense
says doctor


# ---- a broker, and peers
"$weft" broker --data-dir "$work/broker" --listen 127.0.0.1:0 --format json >"$lines/0.broker" 2>>"$work/broker.log" &
broker_pid=$!
wait_for_log "$lines/0.broker" '"event":"listening"'
BROKER=$(field advertised <<<"$LINE") PEER_TOKEN=$(field peer_token <<<"$LINE") WEFT_TOKEN=$(field submitter_token <<<"$LINE")
for peer in one two; do
  "$weft" join "$BROKER" --token "$PEER_TOKEN" --name $peer --data-dir "$work/peer-$peer" --device cpu:1 --format json \
    >"$lines/0.join-$peer" 2>>"$work/$peer.log" &
  peer_pid[$peer]=$!
  wait_for_log "$lines/0.join-$peer" '"what":"joined"'
done
says token create --data-dir "$work/broker" --role admin
admin=$(field token <"$lines/$count.token")
says service install "$BROKER" --token "$PEER_TOKEN" --no-start
says service status
says login "$BROKER" --token "$WEFT_TOKEN"
says login --save-identity "$work/me.pem"
unset WEFT_TOKEN
says submit "$job" --set steps=6 --set "placement={stages: 2, exclude: [nobody]}" --set evaluate_every=3 --set "output=$work/out.onnx"
says submit "$job" --set steps=1000000 --detach
says jobs
says status 1
says logs 1
serves ui ui --listen 127.0.0.1:0
says fetch 1 -o "$work/again.onnx"
says peers
WEFT_TOKEN=$admin says peers
says peers --links
says pause 1s
says peer status
until_is() { until [ "$("$weft" status 2 --format json | field state)" = "$1" ]; do :; done; }
until_is running
says stop 2
until_is stopped
says resume 2
says stop 2
until_is stopped
says rm 2
WEFT_TOKEN=$admin says peers ban one
WEFT_TOKEN=$admin says peers unban one
says token join-line --data-dir "$work/broker"
says token list --data-dir "$work/broker"
says token revoke "$(field id <"$lines/$count.token" | head -n 1)" --data-dir "$work/broker"
says doctor "$BROKER" --token "$PEER_TOKEN"
says logout
end_process TERM "$broker_pid"
broker_pid=
says broker gc --data-dir "$work/broker" --keep 1s --dry-run

# warning: local prints it where a file cannot be written on the way, and here every one can. case: where ONNX's own files
# are not installed.
elsewhere="$elsewhere warning"
/usr/bin/python3 $events validate "$lines"/* >"$work/seen"
for event in $(/usr/bin/python3 -c 'import json; print(*json.load(open("docs/events.schema.json"))["definitions"])'); do
  grep -qx "$event" "$work/seen" || [[ " $elsewhere " == *" $event "* ]] || fail "no command printed the event '$event'"
done
echo "ok: $(cat "$lines"/* | wc -l) lines of $count commands, $(wc -l <"$work/seen") events"

# Every command has --format, but for the one that is a conversation.
"$weft" reference | sed -n 's/^### weft //p' >"$work/commands"
while read -r command; do
  case $command in
    chat | token | peer | service) continue ;;  # a conversation; names of several commands
  esac
  "$weft" help $command | grep -q -- '--format' || fail "weft $command has no --format"
done <"$work/commands"
echo "ok: every command has --format"
