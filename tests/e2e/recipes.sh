#!/usr/bin/env bash
# What is made of published weights is not sent to who has those: matrices that a job's `base` rounds, and those that an
# exporter cut out of a larger one (`submit --base`). A peer with --weights makes its own, a broker with --weights what is
# submitted; the same bytes are trained as without. A file that was changed since is noticed, and all of it is fetched.
#   tests/e2e/recipes.sh
source "$(dirname "$0")/cluster.sh"
cluster_begin
python=/usr/bin/python3
# Frozen but for a norm, so that a stage has next to nothing that was not published: a mask, which the export computed.
model=(--published --layers 2 --width 128 --heads 2 --vocabulary 512 --length 16 --batch 8 --steps 3)
"$python" bench/adapters/make_gpt.py "$work/whole" "${model[@]}"
"$python" bench/adapters/make_gpt.py "$work/cut" --cut "${model[@]}"
cp -r "$work/whole/published" "$work/hub"
sets=(--set adapters=null --set 'train=["transformer.ln_f.*"]')
rounded=(--set 'base={store: int4, block: 64}')
declare -A args=(
  [whole-int4]="${rounded[*]@Q}" [whole-int8]="--set 'base={store: int8}'" [cut]="" [cut-int4]="${rounded[*]@Q}"
)
for name in "${!args[@]}"; do
  eval "more=(${args[$name]})"
  "$weft" local "$work/${name%%-*}/lora.yaml" --threads 1 "${sets[@]}" "${more[@]}" --set "output=$work/$name.onnx" >"$work/$name.log" 2>&1 ||
    fail "$(cat "$work/$name.log")"
done
submit() {  # submit NAME CASE [ARGS]: the case trained by the cluster; NAME.log
  local name=$1 case=$2; shift 2
  eval "more=(${args[$case]})"
  "$weft" submit "$work/${case%%-*}/lora.yaml" "${sets[@]}" "${more[@]}" --set placement.stages=2 --set "output=$work/$name.onnx" "$@" >"$work/$name.log" 2>&1 ||
    fail "$(cat "$work/$name.log")"
  same_file "${name//-/ }" "$work/$case.onnx" "$work/$name.onnx"
}
# Bytes of its last stage that a peer read or made, and of how many.
read_by() { sed -n 's/.* stage_weights run=.* bytes=\([0-9]*\) of=\([0-9]*\)$/\1 \2/p' "$work/$1.log" | tail -n 1; }
made_nearly_all() {  # made_nearly_all PEER...
  local peer
  for peer in "$@"; do
    awk -v peer="$peer" '{ made = $1; all = $2 } END { printf "%s: %d of %d bytes were here already\n", peer, made, all; exit !(all > 0 && made >= 0.99 * all) }' \
      <<<"$(read_by "$peer")" || fail "$peer: $(read_by "$peer")"
  done
}
sent() { grep '^sent ' "$work/$1.log" || fail "nothing is said of what was sent: $(cat "$work/$1.log")"; }
# What of a job is sent to a broker that has the weights: the text, and the mask.
sent_next_to_nothing() {
  sent "$1" | grep -qE '^sent [0-9.]+ (B|KiB) in [1-3] pieces?; the broker had [0-9.]+ (KiB|MiB) in [0-9]+ already$' || fail "$(sent "$1")"
  echo "ok: $(sent "$1")"
}

# ---- peers

start_broker
for peer in a b; do start_peer "$peer" --device cpu:1 --listen 127.0.0.1:0 --weights "$work/hub"; done
for peer in a b; do wait_for_log "$work/$peer.log" 'weights_indexed files=1 tensors='; done
for case in whole-int4 whole-int8; do
  submit "peers-that-round-$case" "$case"
  made_nearly_all a b
  sent "peers-that-round-$case"
done
lose_peer a; lose_peer b

# Other numbers in a file of the same size and time: hashes that were kept are believed, what is made is not.
"$python" tests/e2e/tensor_file.py spoil "$work/hub/model.safetensors"
start_peer c --device cpu:1 --listen 127.0.0.1:0
mkdir "$work/peer-d"
cp "$work/peer-a/weights.jsonl" "$work/peer-d/"
start_peer d --device cpu:1 --listen 127.0.0.1:0 --weights "$work/hub"
wait_for_log "$work/d.log" 'weights_indexed files=1 tensors='
submit a-peer-whose-weights-were-changed whole-int4
grep -q 'warning weights_not_read .*holds something else by now' "$work/d.log" || fail "it is not said that the file was changed"
lose_peer c; lose_peer d

# Parts of tensors: who submits finds them in a folder of his own.
for peer in e f; do start_peer "$peer" --device cpu:1 --listen 127.0.0.1:0 --weights "$work/cut/published"; done
for peer in e f; do wait_for_log "$work/$peer.log" 'weights_indexed files=1 tensors='; done
submit nobody-says-what-was-cut cut
{ read_by e; read_by f; } | awk '{ made += $1; all += $2 } END { exit !(made < 0.9 * all) }' ||
  fail "they have what nobody told them: $(read_by e), $(read_by f)"
for case in cut cut-int4; do
  submit "what-was-cut-$case" "$case" --base "$work/cut/published"
  grep -q 'note: --base: [0-9]* tensors, .* are made of parts of tensors in ' "$work/what-was-cut-$case.log" || fail "$(cat "$work/what-was-cut-$case.log")"
  made_nearly_all e f
done
lose_peer e; lose_peer f

# A broker that was restarted hands on what it was told before.
job=$("$weft" submit "$work/cut/lora.yaml" "${sets[@]}" "${rounded[@]}" --set placement.stages=2 --base "$work/cut/published" --detach 2>"$work/detached.log") ||
  fail "$(cat "$work/detached.log")"
end_process TERM "$broker_pid"
for peer in i j; do start_peer "$peer" --device cpu:1 --listen 127.0.0.1:0 --weights "$work/cut/published"; done
for peer in i j; do wait_for_log "$work/$peer.log" 'weights_indexed files=1 tensors='; done
start_broker
"$weft" logs -f "$job" >"$work/followed.log" 2>&1 || fail "$(cat "$work/followed.log")"
"$weft" fetch "$job" -o "$work/fetched.onnx" >"$work/fetch.log" 2>&1 || fail "$(cat "$work/fetch.log")"
same_file "after a restart of the broker" "$work/cut-int4.onnx" "$work/fetched.onnx"
made_nearly_all i j
lose_peer i; lose_peer j
end_process TERM "$broker_pid"

# ---- a broker

for case in whole-int4 cut cut-int4; do
  from=()
  [ "${case%%-*}" = whole ] || from=(--base "$work/cut/published")
  rm -rf "$work/broker" "$work"/peer-*
  unset BROKER WEFT_TOKEN
  start_broker --weights "$work/${case%%-*}/published"
  wait_for_log "$work/broker.log" 'weights_indexed files=1 tensors='
  for peer in g h; do start_peer "$peer" --device cpu:1 --listen 127.0.0.1:0; done
  submit "a-broker-that-makes-$case" "$case" "${from[@]}"
  sent_next_to_nothing "a-broker-that-makes-$case"
  lose_peer g; lose_peer h
  end_process TERM "$broker_pid"
  : >"$work/broker.log"
done

if "$weft" submit "$work/cut/lora.yaml" "${sets[@]}" --base "$work/nowhere" >"$work/refused.txt" 2>&1; then fail "a folder that is not there was taken"; fi
grep -q -- '--base: .*nowhere: there is no such folder' "$work/refused.txt" || fail "$(cat "$work/refused.txt")"
echo "ok: $(tail -n 1 "$work/refused.txt" | sed "s|$work/||")"
