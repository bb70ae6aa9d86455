#!/usr/bin/env bash
# debug_files.sh PROGRAM BUILD FOLDER: writes what a debugger reads of the program beneath FOLDER (/usr/lib/debug): its
# lines under its build id, and the .dwo files of its objects, from BUILD, under the names by which it knows them.
# (dwp of binutils 2.40 cannot make one file of them: it does not read the ids of DWARF 5.)
set -euo pipefail
program=$1 build=$2 folder=$3
id=$(readelf -n "$program" | sed -n 's/.*Build ID: //p')
[ -n "$id" ] || { echo "debug_files.sh: $program has no build id" >&2; exit 1; }
mkdir -p "$folder/.build-id/${id:0:2}"
objcopy --only-keep-debug "$program" "$folder/.build-id/${id:0:2}/${id:2}.debug"
chmod 0644 "$folder/.build-id/${id:0:2}/${id:2}.debug"

names=$(readelf --debug-dump=info,no-follow-links "$program" | sed -n 's/.*DW_AT_dwo_name.*: //p' | sort -u)
[ -n "$names" ] || exit 0  # all of it is in the program
for name in $names; do
  case $name in /* | *..*) echo "debug_files.sh: $name is not in the build folder" >&2; exit 1 ;; esac
  install -D -m 0644 "$build/$name" "$folder/$name"
done
