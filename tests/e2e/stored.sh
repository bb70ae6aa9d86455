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
adapters=(--set 'adapters={type: lora, rank: 4, alpha: 8, targets: ["*.c_attn.weight", "*.c_fc.weight", "*.wte.weight"]}')
local_run() {  # local_run NAME [ARGS]: the trained file is NAME.onnx
  local name=$1; shift
  "$weft" local "$job" --threads 1 "${sets[@]}" "${adapters[@]}" --set "output=$work/$name.onnx" "$@" >"$work/$name.log" 2>&1 ||
    { cat "$work/$name.log" >&2; fail "$name"; }
}
refused() {  # refused WORDS ARGS...: `weft local` says so
  local words=$1; shift
  if "$weft" local "$job" --set "output=$work/no.onnx" "${sets[@]}" "$@" >"$work/no.log" 2>&1; then fail "taken: $*"; fi
  grep -q "$words" "$work/no.log" || { cat "$work/no.log" >&2; fail "it does not say '$words'"; }
}
# The merged model is the base with its adapters, and no other. What was integers is merged as halves.
check_merge() {  # check_merge LOG [MOST]: how far the merged outputs may be from the adapters' own
  local numbers; numbers=$(sed -nE 's/.*outputs of the merged model: ([^ ]+) from the adapters. own, ([^ ]+) from the base.*/\1 \2/p' "$1")
  awk -v numbers="$numbers" -v most="${2:-1e-4}" \
    'BEGIN { split(numbers, n, " "); exit !(n[1] < most && n[2] > 20 * n[1] && n[2] > 0.01 && n[2] < 100) }' ||
    fail "merged, adapters and base: '$numbers' in $(cat "$1")"
}
loss_of() { grep -oE 'loss [0-9.]+' "$work/$1.log" | tail -n 1 | cut -d' ' -f2; }

# ---- one machine

local_run plain
for store in bf16 int8 int4; do
  local_run "$store" --set "base={store: $store, block: 32}"
  grep -q "base: [0-9]* matrices are kept in $store, .* in place of .*another model" "$work/$store.log" || fail "$store: $(cat "$work/$store.log")"
  if [ "$store" = bf16 ]; then check_merge "$work/$store.log"; else check_merge "$work/$store.log" 0.02; fi
  awk -v a="$(loss_of plain)" -v b="$(loss_of "$store")" 'BEGIN { d = a - b; exit !(d < 0.2 && d > -0.2) }' ||
    fail "$store learns something else: $(loss_of plain) and $(loss_of "$store")"
done
if cmp -s "$work/plain.adapter/adapter_model.safetensors" "$work/int4.adapter/adapter_model.safetensors"; then fail "nothing was rounded"; fi
[ "$(stat -c %s "$work/int4.onnx")" -lt "$(($(stat -c %s "$work/plain.onnx") * 3 / 4))" ] || fail "what no adapter changed is to stay in four bits"

# The type of what was merged: computed with are the same numbers, as far as the type has them.
for type in float32 bfloat16; do
  local_run "merged-$type" --set 'base={store: int4, block: 32}' --set "output={path: $work/merged-$type.onnx, merged: $type}"
  same_file "adapters of $type" "$work/int4.adapter/adapter_model.safetensors" "$work/merged-$type.adapter/adapter_model.safetensors"
done
check_merge "$work/merged-float32.log"
check_merge "$work/merged-bfloat16.log" 0.2
[ "$(stat -c %s "$work/int4.onnx")" -lt "$(stat -c %s "$work/merged-float32.onnx")" ] || fail "halves are to be the smaller ones"
"$weft" merge "$work/int4.onnx" "$work/int4.adapter" -o "$work/twice.onnx" >"$work/merge.txt" 2>&1 || fail "merge: $(cat "$work/merge.txt")"
# What was merged is trained on.
local_run again --set "model=$work/int4.onnx"
check_merge "$work/again.log" 0.02

# A file with halves: kept as they are, or as float32.
cp "$work/bf16.onnx" "$work/halves.onnx"
local_run as_is --set "model=$work/halves.onnx" --set 'base={store: as_is}'
local_run wide --set "model=$work/halves.onnx" --set 'base={store: float32}'
same_file "halves as they are, and in float32" "$work/as_is.onnx" "$work/wide.onnx"

# As a file of tensors it has whole weights, by the names that the float32 model has.
names_in() { /usr/bin/python3 -c 'import sys; sys.path.insert(0, "tests/e2e"); import tensor_file
for name, (kind, shape, _) in sorted(tensor_file.read(sys.argv[1]).items()): print(name, shape)' "$1"; }
for store in as_is bf16 int4; do
  local_run "also-$store" --set "base={store: $store, block: 32}" --also "$work/also-$store.safetensors"
  names_in "$work/also-$store.safetensors" >"$work/also-$store.names"
done
grep -q c_attn.weight "$work/also-as_is.names" || fail "$(cat "$work/also-as_is.names")"
for store in bf16 int4; do same_file "tensors of $store" "$work/also-as_is.names" "$work/also-$store.names"; done

# Beside a base in four bits a matrix lies the other way round, square ones too: adapters and tensors go back to the
# model that it was made of all the same. Its logits are near those of the model that was trained.
square=(--set 'adapters={type: lora, rank: 4, alpha: 8, targets: ["*.attn.c_proj.weight", "*.c_fc.weight"]}')
"$weft" local "$job" --threads 1 "${sets[@]}" "${square[@]}" --set 'base={store: int8, block: 32}' --set "output=$work/square.onnx" \
  --also "$work/square.safetensors" >"$work/square.log" 2>&1 || fail "square: $(cat "$work/square.log")"
"$weft" merge "$work/model.onnx" "$work/square.adapter" -o "$work/square-float.onnx" >"$work/merge.txt" 2>&1 || fail "merge: $(cat "$work/merge.txt")"
"$weft" local "$job" --threads 1 "${sets[@]}" --set steps=1 --set 'optimizer={type: sgd, learning_rate: 1e-30}' --set "init=$work/square.safetensors" \
  --set "output=$work/square-init.onnx" >"$work/init.log" 2>&1 || fail "init: $(cat "$work/init.log")"
/usr/bin/python3 - "$work" <<'PY'
import pathlib, struct, sys, zipfile
work = pathlib.Path(sys.argv[1])
numbers = [(i * i * 7 + i // 32) % 256 for i in range(8 * 32)]
header = "{'descr': '<i8', 'fortran_order': False, 'shape': (8, 32), }"
header += " " * (-(len(header) + 11) % 64) + "\n"
array_bytes = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack("<256q", *numbers)
with zipfile.ZipFile(work / "tokens.npz", "w") as file:
    file.writestr("tokens.npy", array_bytes)
PY
for name in square square-float square-init model; do
  "$weft" predict "$work/$name.onnx" "$work/tokens.npz" -o "$work/$name.npz" >"$work/predict.log" 2>&1 || fail "predict $name: $(cat "$work/predict.log")"
done
/usr/bin/python3 - "$work" <<'PY' || fail "what was trained beside int8 is lost in the model that it was made of"
import array, pathlib, sys, zipfile
def logits(name):
    with zipfile.ZipFile(pathlib.Path(sys.argv[1]) / f"{name}.npz") as file:
        raw = file.read(file.namelist()[0])
    return array.array("f", raw[-8 * 32 * 256 * 4:])
def apart(a, b):
    return max(abs(x - y) for x, y in zip(logits(a), logits(b), strict=True))
learnt = apart("square", "model")
for other in ("square-float", "square-init"):
    print(f"ok: {other}: {apart('square', other):.2g} from what was trained, of {learnt:.2g} that was learnt")
    assert apart("square", other) < 0.1 * learnt, other
PY

# Weights of four bits and of eight that llama.cpp's files have: in blocks of as many numbers they are what they were.
/usr/bin/python3 bench/adapters/make_gpt.py "$work/gguf" --published --layers 1 --width 64 --heads 2 --vocabulary 256 --length 32 --batch 8 --steps 6
/usr/bin/python3 - "$work/gguf" <<'PY'
import pathlib, random, sys
sys.path.insert(0, "tests/e2e")
import tensor_file
folder = pathlib.Path(sys.argv[1])
published = tensor_file.read(folder / "published/model.safetensors")
for block in (tensor_file.q4_0, tensor_file.q8_0):
    (folder / f"{block.__name__}.gguf").write_bytes(tensor_file.gguf(published, random.Random(4), block))
PY
for file in q4_0:int4 q8_0:int8; do
  blocks=${file%:*}
  for store in float32 "${file#*:}"; do
    name=$blocks-$store
    local_run "$name" --set "model=$work/gguf/model.onnx" --set "init={path: $work/gguf/$blocks.gguf, transpose: [\"*.attn.c_proj.weight\"]}" \
      --set "base={store: $store, block: 32}" --set "output={path: $work/$name.onnx, merged: float32}"
  done
  same_file "numbers of $blocks, and float32 made of them" "$work/$blocks-float32.adapter/adapter_model.safetensors" "$work/$name.adapter/adapter_model.safetensors"
done

# ---- a broker

start_broker
for name in a b; do start_peer "$name" --device cpu:1 --listen 127.0.0.1:0; done
for store in int4 bf16; do
  "$weft" submit "$job" "${sets[@]}" "${adapters[@]}" --set "base={store: $store, block: 32}" --set placement.stages=2 \
    --set "output=$work/out.onnx" >"$work/submit.txt" 2>&1 || fail "submit: $(cat "$work/submit.txt")"
  grep -q "matrices are kept in $store" "$work/submit.txt" || fail "nothing is said: $(cat "$work/submit.txt")"
  check_merge "$work/submit.txt" 0.02
  same_file "$store in two stages on peers" "$work/$store.onnx" "$work/out.onnx"
  same_file "$store: adapters" "$work/$store.adapter/adapter_model.safetensors" "$work/out.adapter/adapter_model.safetensors"
done

# ---- a file that keeps its numbers outside: what nobody trained stays there

mkdir "$work/large" "$work/large/out"
/usr/bin/python3 bench/adapters/make_large.py "$work/large" --layers 1 --width 256 --inner 512 --heads 4 --vocabulary 512 --length 32
large() {  # large NAME ARGS...: `weft ARGS... JOB` with the output NAME.onnx
  local name=$1; shift
  "$weft" "$@" "$work/large/lora.yaml" --set 'optimizer={type: adamw, learning_rate: 0.01}' --set steps=6 \
    --set "output={path: $work/large/$name.onnx, base: link}" >"$work/$name.log" 2>&1 || { cat "$work/$name.log" >&2; fail "$name"; }
  check_merge "$work/$name.log" 0.02
}
large linked local --threads 1
large sent submit --set placement.stages=2
same_file "linked data, from peers" "$work/large/linked.onnx.data" "$work/large/sent.onnx.data"
# Two matrices of 256 x 256 in halves.
[ "$(stat -c %s "$work/large/linked.onnx.data")" = $((2 * 256 * 256 * 2)) ] || fail "$(ls -l "$work/large")"
"$weft" merge "$work/large/model.onnx" "$work/large/linked.adapter" -o "$work/large/merged.onnx" --link >"$work/merge.txt" 2>&1 || fail "merge: $(cat "$work/merge.txt")"
same_file "merged afterwards" "$work/large/linked.onnx.data" "$work/large/merged.onnx.data"
job=$work/large/lora.yaml
sets=(--set "output={path: $work/large/out/no.onnx, base: link}")
refused 'is not the folder of' --set steps=1
sets=(--set "output={path: $work/large/no.onnx, base: link}")
refused 'output.base: link. leaves what is not trained in the model' --set 'base={store: int8}'
job=$work/lora.yaml sets=()

# ---- what is wrong

refused 'there is no frozen matrix to keep in int4' --set adapters=null --set 'base={store: int4}'
refused 'no multiple of 16' "${adapters[@]}" --set 'base={store: int4, block: 20}'
refused 'base.store' "${adapters[@]}" --set 'base={store: int3}'
echo "stored: all is as it should be"
