#!/usr/bin/env bash
# A model whose frozen matrices are kept in fewer bits, with adapters beside them: one machine and a broker's peers come
# to the same bytes; whether halves are kept as they are or made float32 changes none; what was rounded is said, and what
# contradicts is refused before a broker is asked.
#   tests/e2e/stored.sh
source "$(dirname "$0")/cluster.sh"
cluster_begin
/usr/bin/python3 bench/adapters/make_gpt.py "$work" --layers 2 --width 64 --heads 2 --vocabulary 256 --length 32 --batch 8 --steps 6
job=$work/lora.yaml
sets=(--set 'optimizer={type: adamw, learning_rate: 0.01}' --set microbatch_size=4)
adapters=(--set 'adapters={type: lora, rank: 4, alpha: 8, targets: ["*.c_attn.weight", "*.c_fc.weight"]}')
local_run() {  # local_run NAME [ARGS]: the trained file is NAME.onnx
  local name=$1; shift
  "$weft" local "$job" --threads 1 "${sets[@]}" "${adapters[@]}" --set "output=$work/$name.onnx" "$@" >"$work/$name.log" 2>&1 ||
    { cat "$work/$name.log" >&2; fail "$name"; }
}
refused() {  # refused WORDS ARGS...: `weft local` says so
  local words=$1; shift
  if "$weft" local "$job" "${sets[@]}" --set "output=$work/no.onnx" "$@" >"$work/no.log" 2>&1; then fail "taken: $*"; fi
  grep -q "$words" "$work/no.log" || { cat "$work/no.log" >&2; fail "it does not say '$words'"; }
}
loss_of() { grep -oE 'loss [0-9.]+' "$work/$1.log" | tail -n 1 | cut -d' ' -f2; }

# ---- one machine

local_run plain
for store in bf16 int8 int4; do
  local_run "$store" --set "base={store: $store, block: 32}"
  grep -q "base: [0-9]* matrices are kept in $store, .* in place of .*another model" "$work/$store.log" || fail "$store: $(cat "$work/$store.log")"
  grep -q 'outputs of the merged model: .* from the adapters' "$work/$store.log" || fail "nothing is compared: $(cat "$work/$store.log")"
  awk -v a="$(loss_of plain)" -v b="$(loss_of "$store")" 'BEGIN { d = a - b; exit !(d < 0.2 && d > -0.2) }' ||
    fail "$store learns something else: $(loss_of plain) and $(loss_of "$store")"
done
if cmp -s "$work/plain.adapter/adapter_model.safetensors" "$work/int4.adapter/adapter_model.safetensors"; then fail "nothing was rounded"; fi
[ "$(stat -c %s "$work/int4.onnx")" -lt "$(($(stat -c %s "$work/plain.onnx") * 3 / 4))" ] || fail "what no adapter changed is to stay in four bits"

# A file with halves: kept as they are, or as float32.
cp "$work/bf16.onnx" "$work/halves.onnx"
local_run as_is --set "model=$work/halves.onnx" --set 'base={store: as_is}'
local_run wide --set "model=$work/halves.onnx" --set 'base={store: float32}'
same_file "halves as they are, and in float32" "$work/as_is.onnx" "$work/wide.onnx"

# ---- a broker

start_broker
for name in a b; do start_peer "$name" --device cpu:1 --listen 127.0.0.1:0; done
for store in int4 bf16; do
  "$weft" submit "$job" "${sets[@]}" "${adapters[@]}" --set "base={store: $store, block: 32}" --set placement.stages=2 \
    --set "output=$work/out.onnx" >"$work/submit.txt" 2>&1 || fail "submit: $(cat "$work/submit.txt")"
  grep -q "matrices are kept in $store" "$work/submit.txt" || fail "nothing is said: $(cat "$work/submit.txt")"
  same_file "$store in two stages on peers" "$work/$store.onnx" "$work/out.onnx"
  same_file "$store: adapters" "$work/$store.adapter/adapter_model.safetensors" "$work/out.adapter/adapter_model.safetensors"
done
"$weft" merge "$work/int4.onnx" "$work/int4.adapter" -o "$work/again.onnx" >/dev/null 2>"$work/merge.txt" || fail "merge: $(cat "$work/merge.txt")"

# ---- what is wrong

refused 'there is no frozen matrix to keep in int4' --set adapters=null --set 'base={store: int4}'
refused 'no multiple of 16' "${adapters[@]}" --set 'base={store: int4, block: 20}'
refused 'base.store' "${adapters[@]}" --set 'base={store: int3}'
echo "stored: all is as it should be"
