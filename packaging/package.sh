#!/usr/bin/env bash
# ./dev package: Debian packages for the distribution that this runs on, and a tarball that brings its libraries.
# Called by ./dev, which has installed what packaging needs. All of it lies in build/packages afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/packages jobs=${1:-1}

# What is packed says the same of itself whenever it is packed.
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s); fi
export SOURCE_DATE_EPOCH
cmake --preset release ${WEFT_COMMIT:+"-DWEFT_COMMIT=$WEFT_COMMIT"} \
  ${WEFT_CUDA_ARCHITECTURES:+"-DWEFT_CUDA_ARCHITECTURES=$WEFT_CUDA_ARCHITECTURES"} | sed -n 's/^-- weft: /.\/dev: /p'
targets=(weft weft_documents)
if ninja -C build/release -t query weft_backend_cuda_module >/dev/null 2>&1; then targets+=(weft_backend_cuda_module); fi
cmake --build --preset release -j "$jobs" --target "${targets[@]}"

mkdir -p "$out"
rm -f "$out"/weft*.deb "$out"/weft-*.tar.gz
log=$(mktemp)
for generator in DEB TGZ; do
  cpack --config build/release/CPackConfig.cmake -G "$generator" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
  if grep -q 'CMake Error' "$log"; then cat "$log" >&2; exit 1; fi
done
rm -rf "$log" "$out/_CPack_Packages"
packaging/symbol_versions.sh "$out"/weft-*.tar.gz
for file in "$out"/weft*.deb "$out"/weft-*.tar.gz; do echo "$file $(stat -c %s "$file") bytes"; done
