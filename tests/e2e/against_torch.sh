#!/usr/bin/env bash
# What needs python3-torch and python3-onnx: the trained files as others read them.
#   - only weights changed, the inference twin is one, and its predictions on ten samples are PyTorch's
#   - the numeric references are what tests/numerics/make_references.py makes
set -euo pipefail
cd "$(dirname "$0")/../.."
weft=build/release/weft
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

failed=0
for case in gpt3 gpt4 resnet18w16 resnet_small; do
  mkdir -p "$work/$case"
  cp "tests/numerics/$case/job.yaml" "tests/numerics/$case/data.npz" "$work/$case/"
  gunzip -c "tests/numerics/$case/model.onnx.gz" >"$work/$case/model.onnx"
  "$weft" local "$work/$case/job.yaml" --format json >"$work/$case/events"
  rename=()
  case $case in resnet*) rename=(x=image) ;; esac
  "$weft" predict "$work/$case/trained.inference.onnx" "$work/$case/data.npz" --limit 10 -o "$work/$case/outputs.npz" "${rename[@]/#/--input=}"
  if /usr/bin/python3 tests/numerics/check_trained.py "$work/$case/model.onnx" "$work/$case/trained.onnx" \
       "$work/$case/trained.inference.onnx" --samples "$work/$case/data.npz" "$work/$case/outputs.npz" --rename "${rename[@]}"; then
    echo "against PyTorch: $case agrees"
  else
    echo "against PyTorch: $case DIFFERS"; failed=1
  fi
done
exit $failed
