#!/usr/bin/env bash
# Kills `weft local` with SIGKILL at random steps, again and again, each time going on from the last checkpoint; the
# trained file must be, byte for byte, that of a run that nobody disturbed. usage: kill_loop.sh [KILLS] [SEED]
set -euo pipefail
cd "$(dirname "$0")/../.."
weft=${WEFT:-build/release/weft}
kills=${1:-20} seed=${2:-$RANDOM}
RANDOM=$seed
echo "kill loop: $kills kills, seed $seed"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp tests/numerics/gpt3/job.yaml tests/numerics/gpt3/data.npz "$work/"
gunzip -c tests/numerics/gpt3/model.onnx.gz >"$work/model.onnx"

run() { "$weft" local "$work/job.yaml" --set steps=600 --set checkpoint.steps=7 --format json "$@"; }
run --set output="$work/whole.onnx" >/dev/null

checkpoints=$work/parts.onnx.checkpoints
for ((i = 1; i <= kills; ++i)); do
  resume=()
  if compgen -G "$checkpoints/checkpoint-*.json" >/dev/null; then resume=(--resume "$checkpoints"); fi
  # The child's own lines say when: after so many steps of this life.
  coproc life { exec "$weft" local "$work/job.yaml" --set steps=600 --set checkpoint.steps=7 --format json --set output="$work/parts.onnx" "${resume[@]}" 2>/dev/null; }
  child=$life_PID left=$((RANDOM % 25 + 1))
  while [ "$left" -gt 0 ] && read -r line <&"${life[0]}"; do
    case $line in *'"event":"step"'*) left=$((left - 1)) ;; esac
  done
  kill -KILL "$child" 2>/dev/null || true
  wait "$child" 2>/dev/null || true
done
resume=()
if compgen -G "$checkpoints/checkpoint-*.json" >/dev/null; then resume=(--resume "$checkpoints"); fi
run --set output="$work/parts.onnx" "${resume[@]}" >"$work/last"
echo "the last life began at step $(grep -o '"first_step":[0-9]*' "$work/last" | cut -d: -f2) of 600"
if cmp "$work/whole.onnx" "$work/parts.onnx"; then
  echo "kill loop: the same file after $kills kills"
else
  echo "kill loop: the files DIFFER (seed $seed)"; exit 1
fi
