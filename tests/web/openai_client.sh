#!/bin/bash
# The npm package `openai`, unmodified, against the door: list, complete, chat, stream, abort, errors; without
# TLS and with it.
#
#   WEFT_NPM=FOLDER tests/web/openai_client.sh [build/release/weft_web_fake_server]
#
# FOLDER is where `npm install openai` was run. Without node or the package it says "skipped", and why.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
server=${1:-build/release/weft_web_fake_server}

skip() { echo "skipped: $1"; exit 77; }
command -v node >/dev/null || skip "there is no node"
[ -n "${WEFT_NPM:-}" ] || skip "WEFT_NPM names no folder with node_modules/openai"
[ -d "$WEFT_NPM/node_modules/openai" ] || skip "$WEFT_NPM has no node_modules/openai; run: npm install openai"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
node "$here/openai_client.cjs" "$server" --token secret
"$server" --tls "$folder" </dev/null >/dev/null  # makes the certificate, which node reads when it starts
NODE_EXTRA_CA_CERTS="$folder/web-test-certificate.pem" \
  node "$here/openai_client.cjs" "$server" --token secret --tls "$folder"
