#!/usr/bin/env bash
# Data that people bring, in each format, with a broker and three peers: what is trained in three stages is, byte for
# byte, what `weft local` trains. Then what is refused: before a peer is asked, with file and row.
source "$(dirname "$0")/cluster.sh"
cluster_begin
"${WEFT_MADE_DATA:-build/release/weft_made_data}" "$work"
gunzip -c tests/numerics/densenet/model.onnx.gz >"$work/densenet.onnx"

job() {  # job NAME MODEL: the rest of the job on standard input
  { printf 'model: %s\ntask: train\n' "$2"; cat; printf 'optimizer: {type: sgd, learning_rate: 0.05, momentum: 0.9}\n'; } >"$work/$1.yaml"
}
# A folder of photos trains with five lines; it is evaluated on the same, without chance.
job images densenet.onnx <<'YAML'
data: {train: {type: images, path: photos, size: 16, mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225], augment: [flip, crop]}, test: {type: images, path: photos, size: 16, resize: 19, mean: 0.5}}
inputs: {x: image}
loss: {type: cross_entropy, logits: logits, labels: label}
batch_size: 16
epochs: 4
YAML
job npy densenet.onnx <<'YAML'
data: {train: {type: npy, arrays: {image: image.npy, label: label.npy}, columns: {image: {scale: 0.00392, mean: [0.5, 0.4, 0.3], augment: [flip, crop], size: 16}}}}
inputs: {x: image}
loss: {type: cross_entropy, logits: logits, labels: label}
batch_size: 16
epochs: 4
YAML
job csv table.onnx <<'YAML'
data: {train: {type: csv, path: table.csv, separator: ";", missing: 0, columns: {x: {from: [height, age, wealth], mean: [0, 25, 8], deviation: [1, 10, 5]}, y: {from: kind, classes: auto}}}}
inputs: {x: x}
loss: {type: cross_entropy, logits: logits, labels: y}
batch_size: 16
epochs: 4
YAML
# A table of photos, of which nothing is drawn.
(cd "$work/photos" && echo path,label && find . -mindepth 2 -type f | LC_ALL=C sort -R --random-source=<(yes) | sed -E 's|^./(([a-z]*)/.*)|\1,\2|') >"$work/photos/list.txt"
mv "$work/photos/list.txt" "$work/photos/list.csv"
job list densenet.onnx <<'YAML'
data: {train: {type: images, path: photos/list.csv, classes: auto, size: 16}}
inputs: {x: image}
loss: {type: cross_entropy, logits: logits, labels: label}
batch_size: 16
epochs: 3
YAML

formats=(images npy csv list)
for format in "${formats[@]}"; do
  "$weft" local "$work/$format.yaml" --set microbatch_size=4 --threads 1 --set "output=$work/$format.local.onnx" --format json >"$work/$format.local.json"
done
start_broker
for name in a b c; do start_peer "$name" --device cpu:1 --listen 127.0.0.1:0; done
for format in "${formats[@]}"; do
  "$weft" submit "$work/$format.yaml" --set microbatch_size=4 --set placement.stages=3 --set "output=$work/out.onnx" --format json >"$work/out.json"
  same_file "$format in 3 stages" "$work/$format.local.onnx" "$work/out.onnx"
  for f in "$work/$format.local.json" "$work/out.json"; do
    grep -E '"event": ?"(step|evaluation)"' "$f" | sed -E 's/,?"(seconds|samples_per_second|time|job)": ?("[^"]*"|[^,}]*)//g' >"$f.numbers"
  done
  same_file "$format in 3 stages: losses" "$work/$format.local.json.numbers" "$work/out.json.numbers"
done

# The same bytes as tokens of 16 bits, as nanoGPT writes them: it learns the same.
made_text 20000 >"$work/corpus.txt"
/usr/bin/python3 -c 'import array, sys; array.array("H", list(open(sys.argv[1], "rb").read())).tofile(open(sys.argv[2], "wb"))' "$work/corpus.txt" "$work/corpus.bin"
gpt=(examples/gpt/job.yaml --set steps=6 --set batch_size=4 --set microbatch_size=2 --set checkpoint=null)
tokens=(--set "data={train: {type: tokens, path: $work/corpus.bin, sequence_length: 128, validation: 0.1}}")
"$weft" local "${gpt[@]}" --set "data.train.path=$work/corpus.txt" --threads 1 --set "output=$work/text.onnx" >"$work/text.log"
"$weft" local "${gpt[@]}" "${tokens[@]}" --threads 1 --set "output=$work/tokens.onnx" >"$work/tokens.log"
same_file "bytes of a text, as tokens" "$work/text.onnx" "$work/tokens.onnx"
"$weft" submit "${gpt[@]}" "${tokens[@]}" --set placement.stages=2 --set "output=$work/out.onnx" >"$work/out.log"
same_file "tokens in 2 stages" "$work/text.onnx" "$work/out.onnx"

# Conversations, of which the answers are learnt; the last documents are kept from training.
for i in $(seq 60); do
  printf '{"id": %d, "messages": [{"role": "user", "content": "how much is %d and %d?"}, {"role": "assistant", "content": "%d"}]}\n' "$i" "$i" 7 $((i + 7))
done >"$work/talks.jsonl"
talks=(--set "data={train: {type: jsonl, path: $work/talks.jsonl, tokenizer: bytes, messages: messages, chat_template: plain, pack: across, sequence_length: 128, validation: 0.2}}")
"$weft" local "${gpt[@]}" "${talks[@]}" --threads 1 --set "output=$work/talks.onnx" >"$work/talks.log"
"$weft" submit "${gpt[@]}" "${talks[@]}" --set placement.stages=2 --set "output=$work/out.onnx" >"$work/out.log"
same_file "conversations in 2 stages" "$work/talks.onnx" "$work/out.onnx"
perplexity() { grep -o 'perplexity [0-9.]*' "$1" | tail -n 1; }
[ -n "$(perplexity "$work/talks.log")" ] && [ "$(perplexity "$work/talks.log")" = "$(perplexity "$work/out.log")" ] ||
  fail "perplexity: '$(perplexity "$work/talks.log")' and '$(perplexity "$work/out.log")'"

refused() {  # refused WHAT PART ARGS...
  local what=$1 part=$2 before after; shift 2
  before=$("$weft" jobs --format json | wc -l)
  if "$weft" submit "$@" --set "output=$work/none.onnx" >"$work/refused.txt" 2>&1; then fail "$what was taken"; fi
  grep -qF -- "$part" "$work/refused.txt" || fail "$what: $(cat "$work/refused.txt")"
  after=$("$weft" jobs --format json | wc -l)
  [ "$before" = "$after" ] || fail "$what: the broker was asked"
  echo "ok: $what is refused: $(head -n 1 "$work/refused.txt" | sed "s|$work/||g" | cut -c 1-160)"
}
head -c 300 "$work/photos/dog/11.jpg" >"$work/photos/dog/cut.jpg"
refused "a photo that is cut off" "photos/dog/cut.jpg: row " "$work/images.yaml"
"$weft" inspect "$work/photos" >"$work/inspect.txt" && fail "inspect takes a photo that is cut off"
grep -q 'unreadable: .*cut.jpg' "$work/inspect.txt" || fail "inspect: $(cat "$work/inspect.txt")"
rm "$work/photos/dog/cut.jpg"
sed -i '3s/;"cat";/;"cat";;/' "$work/table.csv"
refused "a row of another width" "table.csv: row 3: " "$work/csv.yaml"
printf '\xff\xff' | dd of="$work/corpus.bin" bs=1 seek=400 conv=notrunc status=none
refused "a token beyond the vocabulary" "65535 in row 1 " "${gpt[@]}" "${tokens[@]}"
printf 'x' >>"$work/corpus.bin"
refused "half a token" "which are no whole tokens of 2" "${gpt[@]}" "${tokens[@]}"
refused "an ONNX model as a job" "is an ONNX model, not a job file; write one" "$work/densenet.onnx"
refused "a folder as a job" "is a folder, not a job file" "$work/photos"
refused "a table as a model" "is a table (CSV), not an ONNX model" "$work/images.yaml" --set "model=$work/photos/list.csv"
sed -i '3s/assistant/tool/' "$work/talks.jsonl"
refused "a role that no template writes" "talks.jsonl: line 3: message 1 has the role 'tool'" "${gpt[@]}" "${talks[@]}"
sed -i '3s/"messages"/"talk"/' "$work/talks.jsonl"
refused "a field that is not there" "line 3: has no field 'messages'; it has 'id', 'talk'" "${gpt[@]}" "${talks[@]}"
sed -i '3d' "$work/talks.jsonl"
printf '{"id": 61, "messages": [{"role": "us' >>"$work/talks.jsonl"
refused "a line that was cut off" "line 60: " "${gpt[@]}" "${talks[@]}"
