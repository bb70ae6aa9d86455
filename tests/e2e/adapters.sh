#!/usr/bin/env bash
# Adapters with real processes: one machine and a broker's peers come to the same bytes, of the merged model and of
# the adapters; a folder of adapters is merged again, and gone on from; what contradicts is refused before a broker is
# asked.
#   tests/e2e/adapters.sh
source "$(dirname "$0")/cluster.sh"
cluster_begin
/usr/bin/python3 bench/adapters/make_gpt.py "$work" --layers 2 --width 64 --heads 2 --vocabulary 256 --length 32 --batch 8 --steps 6
job=$work/lora.yaml
sets=(--set 'optimizer={type: adamw, learning_rate: 0.01}' --set microbatch_size=4)
adapters='{type: lora, rank: 4, alpha: 8, dropout: 0.1, targets: ["*.c_attn.weight", "*.wte.weight"]}'
full='{type: full, targets: ["*.ln_f.*"]}'
local_run() {  # local_run NAME [ARGS]: the trained file is NAME.onnx
  local name=$1; shift
  "$weft" local "$job" --threads 1 "${sets[@]}" --set "output=$work/$name.onnx" "$@" >"$work/$name.log" 2>&1 || { cat "$work/$name.log" >&2; fail "$name"; }
}
same_folder() {  # same_folder WHAT A B
  local file
  for file in adapter_model.safetensors adapter_config.json adapters.json; do same_file "$1: $file" "$2/$file" "$3/$file"; done
}

# ---- one machine

local_run alone --set "adapters=[$adapters, $full]"
grep -q 'outputs of the merged model: .* from the adapters' "$work/alone.log" || fail "nothing is compared: $(cat "$work/alone.log")"
/usr/bin/python3 tests/e2e/tensor_file.py check "$work/alone.adapter/adapter_model.safetensors" >"$work/names" || fail "the form of the adapters' file"
for name in transformer.h.0.attn.c_attn.lora_A.weight transformer.h.1.attn.c_attn.lora_B.weight transformer.wte.lora_embedding_A transformer.ln_f.bias; do
  grep -q "base_model.model.$name" "$work/names" || fail "no $name: $(cat "$work/names")"
done
"$weft" merge "$work/model.onnx" "$work/alone.adapter" -o "$work/merged.onnx" >/dev/null
same_file "merged again" "$work/alone.onnx" "$work/merged.onnx"

# ---- a broker

start_broker
for name in a b; do start_peer "$name" --device cpu:1 --listen 127.0.0.1:0; done
"$weft" submit "$job" "${sets[@]}" --set "adapters=[$adapters, $full]" --set placement.stages=2 --set "output=$work/out.onnx" >"$work/submit.txt" 2>&1 ||
  fail "submit: $(cat "$work/submit.txt")"
same_file "in two stages on peers" "$work/alone.onnx" "$work/out.onnx"
grep -q 'outputs of the merged model: .* from the adapters' "$work/submit.txt" || fail "nothing is compared: $(cat "$work/submit.txt")"
same_folder "in two stages on peers" "$work/alone.adapter" "$work/out.adapter"
"$weft" fetch 1 -o "$work/fetched.onnx" >"$work/fetch.txt" 2>&1 || fail "fetch: $(cat "$work/fetch.txt")"
same_file "fetched" "$work/alone.onnx" "$work/fetched.onnx"
same_folder "fetched" "$work/alone.adapter" "$work/fetched.adapter"

# ---- going on

more="{type: lora, rank: 4, alpha: 8, init: $work/alone.adapter/adapter_model.safetensors, targets: [\"*.c_attn.weight\", \"*.wte.weight\"]}"
local_run on --set "adapters=[$full, $more]"
"$weft" submit "$job" "${sets[@]}" --set "adapters=[$full, $more]" --set placement.stages=2 --set "output=$work/out.onnx" >"$work/submit.txt" 2>&1 ||
  fail "submit: $(cat "$work/submit.txt")"
same_file "from a file of adapters, on peers" "$work/on.onnx" "$work/out.onnx"
if cmp -s "$work/on.onnx" "$work/alone.onnx"; then fail "nothing more was learnt"; fi

# ---- a peer that is lost, and replicas that add each step's gradients

start_peer c --device cpu:1 --listen 127.0.0.1:0
long=(--set steps=400 --set "adapters=[$adapters, $full]")
local_run whole "${long[@]}"
submit_job "$job" "${sets[@]}" "${long[@]}" --set placement.stages=2 --set "output=$work/out.onnx"
wait_for_step 30
lose_peer "$(active_peers | head -n 1)"
finish_job
[ "$RESULT" = completed ] || fail "the job ended as $RESULT"
same_file "with a peer that was lost" "$work/whole.onnx" "$work/out.onnx"
same_folder "with a peer that was lost" "$work/whole.adapter" "$work/out.adapter"
exact=("${sets[@]}" --set "adapters=[$adapters, $full]" --set gradient_ranges=2)
local_run ranges "${exact[@]}"
"$weft" submit "$job" "${exact[@]}" --set replicas=2 --set sync=step --set placement.stages=1 --set "output=$work/out.onnx" >"$work/submit.txt" 2>&1 ||
  fail "submit: $(cat "$work/submit.txt")"
same_file "in two replicas that add their gradients" "$work/ranges.onnx" "$work/out.onnx"

# ---- what is refused

before=$("$weft" jobs --format json | wc -l)
for command in local submit plan; do
  more=(--set "output=$work/none.onnx")
  [ "$command" != plan ] || more=(--live)
  if "$weft" "$command" "$job" --set 'adapters.targets=["*.c_atn.weight"]' "${more[@]}" >"$work/refused.txt" 2>&1; then fail "$command took it"; fi
  grep -q "nothing is adapted by '\*.c_atn.weight'" "$work/refused.txt" || fail "$command: $(cat "$work/refused.txt")"
done
[ "$before" = "$("$weft" jobs --format json | wc -l)" ] || fail "the broker was asked"
echo "ok: a target that names nothing is refused: $(head -n 1 "$work/refused.txt" | sed "s|$work/||g" | cut -c 1-160)"
