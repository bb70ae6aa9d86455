#!/usr/bin/env bash
# Published weights that lie on a machine are not sent there: the tensors are bfloat16 with matrices the other way round, as a
# hub has them beside what an exporter writes. Peers with --weights read theirs, a broker with --weights has
# what is submitted; the same bytes come out as without. A file that was changed since is noticed, and fetched.
#   tests/e2e/weights.sh
source "$(dirname "$0")/cluster.sh"
cluster_begin
python=/usr/bin/python3
take_model llama
job=$work/job.yaml hub=$work/hub/models--some--llama
mkdir -p "$hub/blobs" "$hub/snapshots/1"
"$weft" local "$job" --threads 1 --set steps=2 --set "output=$work/base.onnx" --also "$work/base.safetensors" >"$work/base.log" 2>&1 ||
  fail "$(cat "$work/base.log")"
"$python" tests/e2e/tensor_file.py halve "$work/base.safetensors" "$hub/blobs/4711"
ln -s ../../blobs/4711 "$hub/snapshots/1/model.safetensors"
init="init={path: $hub/snapshots/1/model.safetensors, transpose: [\"*\"]}"
sets=(--set steps=3 --set seed=5 --set "$init")
"$weft" local "$job" --threads 1 "${sets[@]}" --set "output=$work/local.onnx" >"$work/local.log" 2>&1 || fail "$(cat "$work/local.log")"
submit() {  # submit NAME [ARGS]: NAME.onnx and NAME.log
  local name=$1; shift
  "$weft" submit "$job" "${sets[@]}" --set placement.stages=2 --set "output=$work/$name.onnx" "$@" >"$work/$name.log" 2>&1 ||
    fail "$(cat "$work/$name.log")"
  same_file "${name//-/ }" "$work/local.onnx" "$work/$name.onnx"
}
# Of what its last stage has, in percent; a peer that read nothing says nothing. What is not among them are masks and
# tables of angles that the export computed: little of a large model, some of this one.
percent_read() {
  sed -n 's/.* stage_weights run=.* bytes=\([0-9]*\) of=\([0-9]*\)$/\1 \2/p' "$work/$1.log" | tail -n 1 |
    awk '{ printf "%d", 100 * $1 / $2 }'
}

# ---- peers

start_broker
for peer in a b; do start_peer "$peer" --device cpu:1 --listen 127.0.0.1:0 --weights "$work/hub"; done
for peer in a b; do wait_for_log "$work/$peer.log" 'weights_indexed files=1 tensors='; done
submit peers-that-have-the-weights
for peer in a b; do
  [ "$(percent_read "$peer")" -ge 90 ] || fail "$peer read $(percent_read "$peer")% of its stage"
done
grep -q '^sent .* pieces$' "$work/peers-that-have-the-weights.log" || fail "the broker has none"

lose_peer a; lose_peer b
[ -s "$work/peer-a/weights.jsonl" ] || fail "no hashes were kept"
"$python" tests/e2e/tensor_file.py halve "$work/base.safetensors" "$work/again.safetensors"
sets=(--set steps=3 --set seed=5 --set "init={path: $work/again.safetensors, transpose: [\"*\"]}")
for peer in c d; do start_peer "$peer" --device cpu:1 --listen 127.0.0.1:0; done
submit peers-without
for peer in c d; do [ -z "$(percent_read "$peer")" ] || fail "$peer has none"; done
lose_peer c; lose_peer d

# Other numbers in a file of the same size and time: hashes that were kept are believed, what is read is not.
"$python" tests/e2e/tensor_file.py spoil "$hub/blobs/4711"
mkdir "$work/peer-h"
cp "$work/peer-a/weights.jsonl" "$work/peer-h/"
start_peer e --device cpu:1 --listen 127.0.0.1:0
start_peer h --device cpu:1 --listen 127.0.0.1:0 --weights "$work/hub"
wait_for_log "$work/h.log" 'weights_indexed files=1 tensors='
submit a-peer-whose-weights-were-changed
grep -q 'warning weights_not_read .*holds something else by now' "$work/h.log" || fail "it is not said that the file was changed"
lose_peer e; lose_peer h
end_process TERM "$broker_pid"

# ---- a broker

cp "$work/again.safetensors" "$hub/blobs/4711"
rm -rf "$work/broker" "$work"/peer-*
unset BROKER WEFT_TOKEN
start_broker --weights "$work/hub"
wait_for_log "$work/broker.log" 'weights_indexed files=1 tensors='
for peer in f g; do start_peer "$peer" --device cpu:1 --listen 127.0.0.1:0; done
submit a-broker-that-has-the-weights
said=$(grep '^sent ' "$work/a-broker-that-has-the-weights.log") || fail "nothing is said of what was sent"
# What is not among them: the data, and those tables.
[[ $said == 'sent '*' in 2 pieces; the broker had '*' already' ]] || fail "$said"
echo "ok: $said"
for role in broker join; do
  more=()
  [ "$role" != join ] || more=("$BROKER" --token "$PEER_TOKEN")
  if "$weft" "$role" "${more[@]}" --data-dir "$work/none-$role" --weights "$work/nowhere" >"$work/refused.txt" 2>&1; then fail "$role took a folder that is not there"; fi
  grep -q -- '--weights: .*nowhere: there is no such folder' "$work/refused.txt" || fail "$(cat "$work/refused.txt")"
  echo "ok: $role: $(tail -n 1 "$work/refused.txt" | sed "s|$work/||")"
done
