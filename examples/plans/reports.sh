#!/usr/bin/env bash
# A report of each example, every strategy compared:  ./reports.sh [FOLDER, default reports]
# WEFT says which program (default weft). Models are made by models.py beforehand; some minutes in all.
set -euo pipefail
cd "$(dirname "$0")"
folder=${1:-reports}
mkdir -p "$folder"
report() {  # NAME MODEL CLUSTER SETTINGS ...
  local name=$1 model=$2 cluster=$3 setting sets=()
  shift 3
  for setting in "$@"; do sets+=(--set "$setting"); done
  echo "== $name"
  "${WEFT:-weft}" plan "models/$model.onnx" --cluster "$cluster.yaml" "${sets[@]}" --compare --html "$folder/$name.html"
}
report bert-large-fifty bert-large fifty-3080 batch_size=256 microbatch_size=2
report bert-large-h100x4 bert-large h100x4 batch_size=256 microbatch_size=2
report gpt-1.3b-fifty gpt-1.3b fifty-3080 batch_size=128 microbatch_size=1
report gpt-1.3b-h100x4 gpt-1.3b h100x4 batch_size=128 microbatch_size=1
for sites in campus-48 sites-48 scattered-48; do
  report "resnet101-$sites" resnet101 "$sites" batch_size=256 microbatch_size=8
  report "gpt2-xl-$sites" gpt2-xl "$sites" batch_size=128 microbatch_size=1
done
report gpt2-xl-world gpt2-xl world batch_size=128 microbatch_size=1
