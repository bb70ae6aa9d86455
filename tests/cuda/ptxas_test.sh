#!/bin/sh
# What the assembler makes of the kernels: no register spilled and no stack, on any generation of cards. By default for the
# oldest and the newest; WEFT_LONG=1: for all. Without nvcc it is skipped.
set -eu
cd "$(dirname "$0")/../.."

# Kernels that may have either, by name, one a line, each with its reason.
# layer_norm_warp_32: 76 bytes on sm_120 alone, at the 128 registers that let two blocks share a multiprocessor; a line
#   of 1024 is held in registers, and one block there would have nobody to compute while it waits for memory.
allowed='
layer_norm_warp_32
'

nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
if ! [ -x "$nvcc" ]; then
  echo "skipped: no nvcc"
  exit 77
fi
ptxas=$(dirname "$(readlink -f "$nvcc")")/ptxas
cards='sm_75 sm_120'
[ "${WEFT_LONG:-0}" = 0 ] || cards='sm_75 sm_86 sm_89 sm_90 sm_120'

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for source in peer/backend/cuda/kernels/*.cu; do
  # As peer/backend/cuda/module.cmake has it: one front end, an assembler for each card.
  "$nvcc" -std=c++20 -O3 -fmad=false -I. -arch=compute_75 -ptx "$source" -o "$folder/kernels.ptx"
  for card in $cards; do
    "$ptxas" -v -arch=$card "$folder/kernels.ptx" -o "$folder/kernels.cubin" >"$folder/said" 2>&1 || { cat "$folder/said"; exit 1; }
    sed "s|^|$(basename "$source") |" "$folder/said" >>"$folder/all"
  done
done

c++filt <"$folder/all" | awk -v allowed="$allowed" '
  BEGIN { count = split(allowed, names, "\n"); for (i = 1; i <= count; ++i) if (names[i] != "") may[names[i]] = 1 }
  /Compiling entry function/ {
    kernel = $0; sub(/^.*Compiling entry function ./, "", kernel)
    card = kernel; sub(/^.* for ./, "", card); sub(/[^a-z0-9_].*$/, "", card)
    sub(/\(.*$/, "", kernel); sub(/^.*::/, "", kernel)
    ++kernels
  }
  /bytes stack frame/ {
    ++seen
    if ($0 ~ / 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads/) next
    if (kernel in may) next
    line = $0; sub(/^[^ ]* */, "", line)
    print $1 ": " kernel " on " card ": " line
    ++bad
  }
  END {
    print kernels " kernels, " bad + 0 " with spills or a stack"
    if (kernels == 0 || seen < kernels) { print "the assembler does not speak as expected: " seen + 0 " reports"; exit 1 }
    exit bad > 0
  }'
