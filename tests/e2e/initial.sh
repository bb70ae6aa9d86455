#!/usr/bin/env bash
# Weights from a file of tensors, with real processes: what `--also` wrote is where the next run begins, byte for byte, on
# one machine and on a broker's peers; from several files by their index, under other names; a file that does not fit is
# refused before anybody is asked. tests/e2e/tensor_file.py reads and writes such files by the format alone.
#   tests/e2e/initial.sh
source "$(dirname "$0")/cluster.sh"
cluster_begin
python=/usr/bin/python3
take_model two_heads
job=$work/job.yaml w=$work/w.safetensors
local_run() {  # local_run NAME [ARGS]: the trained file is NAME.onnx
  local name=$1; shift
  "$weft" local "$job" --threads 1 --set "output=$work/$name.onnx" "$@" >"$work/$name.log" 2>&1 || { cat "$work/$name.log" >&2; fail "$name"; }
}

# ---- what is written

local_run first --set steps=4 --also "$w"
grep -q "wrote $w with [0-9]* tensors" "$work/first.log" || fail "--also says nothing: $(cat "$work/first.log")"
"$python" tests/e2e/tensor_file.py check "$w" >"$work/names" || fail "the form of $w"
echo "ok: $(wc -l <"$work/names") tensors in the published form"

# ---- where the next run begins

local_run by_model --set steps=3 --set seed=5 --set "model=$work/first.onnx"
local_run by_weights --set steps=3 --set seed=5 --set "init=$w" --also "$work/again.safetensors"
same_file "a run from the trained model and one from its weights" "$work/by_model.onnx" "$work/by_weights.onnx"
grep -q "init: $(wc -l <"$work/names") tensors of the model came from $w" "$work/by_weights.log" || fail "nothing is said: $(cat "$work/by_weights.log")"

# A run whose learning rate is nothing, with statistics that stay, keeps what it began with.
local_run still --set steps=1 --set 'freeze=["*.running_*"]' --set "init=$w" --set 'optimizer={type: sgd, learning_rate: 1e-30}' --also "$work/still.safetensors"
same_file "weights that were read and written again" "$w" "$work/still.safetensors"

# ---- several files, other names, other forms

mkdir "$work/parts"
"$python" tests/e2e/tensor_file.py split "$w" "$work/parts" 3 transformer.
index=$work/parts/model.safetensors.index.json
local_run by_index --set steps=3 --set seed=5 --set "init={path: $index, rename: {\"^transformer\\\\.\": \"\"}}"
same_file "from three files by their index, renamed" "$work/by_model.onnx" "$work/by_index.onnx"
"$python" tests/e2e/tensor_file.py transpose "$w" "$work/turned.safetensors"
local_run by_turned --set steps=3 --set seed=5 --set "init={path: $work/turned.safetensors, transpose: [\"*\"]}"
same_file "from transposed matrices" "$work/by_model.onnx" "$work/by_turned.onnx"

# ---- a broker

start_broker
for name in a b; do start_peer "$name" --device cpu:1 --listen 127.0.0.1:0; done
"$weft" submit "$job" --set steps=3 --set seed=5 --set "init=$w" --set placement.stages=2 --set "output=$work/out.onnx" \
  --also "$work/out.safetensors" >"$work/submit.txt" 2>&1 || fail "submit: $(cat "$work/submit.txt")"
same_file "in two stages on peers" "$work/by_model.onnx" "$work/out.onnx"
same_file "in two stages on peers: weights" "$work/again.safetensors" "$work/out.safetensors"
grep -q "init: .* came from $w" "$work/submit.txt" || fail "submit says nothing: $(cat "$work/submit.txt")"
"$weft" fetch 1 -o "$work/fetched.onnx" --also "$work/fetched.safetensors" >"$work/fetch.txt" 2>&1 || fail "fetch: $(cat "$work/fetch.txt")"
same_file "fetched weights" "$work/again.safetensors" "$work/fetched.safetensors"
[ -z "$(find "${TMPDIR:-/tmp}" -maxdepth 1 -name 'weft-fetch-*' -newer "$work/job.yaml" -user "$(id -u)" 2>/dev/null | head -n 1)" ] || echo "note: another run's temporary folder is there"

# ---- what is refused

refused() {  # refused WHAT PART ARGS...
  local what=$1 part=$2 before command; shift 2
  before=$("$weft" jobs --format json | wc -l)
  for command in local submit plan; do
    local more=(--set "output=$work/none.onnx")
    [ "$command" != plan ] || more=(--live)
    if "$weft" "$command" "$job" "$@" "${more[@]}" >"$work/refused.txt" 2>&1; then fail "$what was taken by $command"; fi
    grep -qF -- "$part" "$work/refused.txt" || fail "$what, $command: $(cat "$work/refused.txt")"
    grep -q 'init' "$work/refused.txt" || fail "$what, $command: $(cat "$work/refused.txt")"
  done
  [ "$before" = "$("$weft" jobs --format json | wc -l)" ] || fail "$what: the broker was asked"
  [ ! -e "$work/none.onnx" ] || fail "$what: something was written"
  echo "ok: $what is refused: $(head -n 1 "$work/refused.txt" | sed "s|$work/||g" | cut -c 1-160)"
}
refused "a file of other names" 'this would help: rename: {"^transformer\\.": ""}' --set "init=$index"
head -c 100000 "$w" >"$work/cut.safetensors"
truncate -s -1 "$work/cut.safetensors"
refused "a file that is cut off" "cut.safetensors" --set "init=$work/cut.safetensors"
printf '\0\341\365\5\0\0\0\0{' >"$work/long.safetensors"
truncate -s 101M "$work/long.safetensors"
refused "a header of 100 MB" "has a header of 100000000 bytes" --set "init=$work/long.safetensors"
sed "s|\"model-00001-of-00003.safetensors\"|\"../w.safetensors\"|" "$index" >"$work/parts/escape.json"
refused "an index that leads elsewhere" "only files beside the index are read" --set "init=$work/parts/escape.json"
refused "a model as weights" "is an ONNX model" --set "init=$work/model.onnx"
if "$weft" local "$job" --set "init=$w" --also "$w" --set "output=$work/none.onnx" >"$work/refused.txt" 2>&1; then fail "what is read was overwritten"; fi
grep -q "would be overwritten" "$work/refused.txt" || fail "$(cat "$work/refused.txt")"
echo "ok: what init reads is not overwritten"
