#!/usr/bin/env bash
# symbol_versions.sh TARBALL [GLIBC_MAX GLIBCXX_MAX]: which versions of the C and C++ libraries' symbols the files of the
# tarball ask for at most; an error where that is more than Debian 12 has.
set -euo pipefail
tarball=$1 glibc_max=${2:-2.36} glibcxx_max=${3:-3.4.30}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -xzf "$tarball" -C "$work"
find "$work" -type f \( -path '*/bin/*' -o -name '*.so*' \) -exec objdump -T {} + >"$work/symbols" 2>/dev/null

highest() { # of a prefix, among what is asked for: undefined symbols alone
  awk '/\*UND\*/' "$work/symbols" | grep -oE "\b$1_[0-9.]+" | sed "s/$1_//" | sort -uV | tail -1
}
for pair in "GLIBC $glibc_max" "GLIBCXX $glibcxx_max"; do
  read -r name max <<<"$pair"
  found=$(highest "$name")
  [ -n "$found" ] || { echo "symbol_versions.sh: no symbol of $name in $tarball: are these its programs?" >&2; exit 1; }
  if [ "$(printf '%s\n' "$found" "$max" | sort -V | tail -1)" != "$max" ]; then
    echo "symbol_versions.sh: $tarball needs ${name}_$found; Debian 12 has ${name}_$max" >&2
    exit 1
  fi
  echo "$(basename "$tarball"): highest ${name}_$found (Debian 12: ${name}_$max)"
done
