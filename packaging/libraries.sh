#!/usr/bin/env bash
# libraries.sh PROGRAM FOLDER: puts the libraries that the program needs into FOLDER/lib/weft, and their licences into
# FOLDER/share/doc/weft. All but the C library, which has to fit the system's own loader.
set -euo pipefail
program=$1 folder=$2
mkdir -p "$folder/lib/weft" "$folder/share/doc/weft/licences"
c_library='^(libc|libm|libdl|librt|libpthread|libresolv|ld-linux.*)\.so'
ldd "$program" | awk '$3 ~ /^\// { print $1, $3 }' | while read -r name path; do
  [[ $name =~ $c_library ]] && continue
  install -m 0644 "$path" "$folder/lib/weft/$name"
  # Where usr is merged, the package may know the file by either name.
  owner=$(dpkg-query -S "$(realpath "$path")" 2>/dev/null || dpkg-query -S "${path#/usr}" 2>/dev/null ||
    dpkg-query -S "$(realpath "$path" | sed 's|^/usr||')") || { echo "libraries.sh: no package has $path" >&2; exit 1; }
  owner=${owner%%:*}
  install -m 0644 "$(realpath "/usr/share/doc/$owner/copyright")" "$folder/share/doc/weft/licences/$owner"
done
install -m 0644 "$(dirname "$0")/../ui/page/uplot/LICENSE" "$folder/share/doc/weft/licences/uplot"  # it stands in the program
