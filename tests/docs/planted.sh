#!/usr/bin/env bash
# Whether run.sh finds what it is there to find: each page of planted/ fails with the words after "fails:" in its
# first line, and the one that says "passes" does not.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for page in "$here"/planted/*.md; do
  first=$(head -n 1 "$page") code=0
  said=$(PATIENCE=5 "$here/run.sh" "$page" 2>&1) || code=$?
  if [[ $first == '<!-- passes -->' ]]; then
    [ "$code" = 0 ] || { echo "FAILED: $page does not pass: $said" >&2; exit 1; }
  else
    [[ $first =~ ^'<!-- fails: '(.*)' -->'$ ]] || { echo "FAILED: $page does not say how it fails" >&2; exit 1; }
    [ "$code" = 1 ] || { echo "FAILED: $page ended with $code: $said" >&2; exit 1; }
    [[ $said == *"${BASH_REMATCH[1]}"* ]] || { echo "FAILED: $page: '${BASH_REMATCH[1]}' is not in: $said" >&2; exit 1; }
  fi
  echo "ok: $(basename "$page")"
done
