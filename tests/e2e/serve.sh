#!/usr/bin/env bash
# One machine that serves: `weft serve` as a process, asked by raw HTTP, by `weft generate --url` and by `weft chat`. The same
# seed gives the same text from the file and from the service, whole and as a stream, alone and in company.
#   serve.sh [--quick]
# WEFT_WEB_FAKE_SERVER makes a certificate: without it TLS is left out. WEFT_NPM: where `npm install openai` was run.
source "$(dirname "$0")/cluster.sh"
model=examples/gpt/model.onnx
cluster_begin
cp "$model" "$work/gpt.onnx"

# start_serve NAME [ARGS]: sets `url` and `port`; its process is peer_pid[NAME]. `served` is the file.
served=$work/gpt.onnx
start_serve() {
  local name=$1 line out pipe
  shift
  pipe=$work/$name.out
  mkfifo "$pipe"
  "$weft" serve "$served" --http 127.0.0.1:0 --threads 1 --skip-check "$@" >"$pipe" 2>"$work/$name.log" &
  peer_pid[$name]=$!
  exec {out}<"$pipe"
  read -r -t $((60 * slower)) line <&"$out" || fail "$name did not start"
  read -r -t $((60 * slower)) _ <&"$out"  # what to try
  url=$(grep -o 'https\?://[^ ]*' <<<"$line")
  port=${url##*:} port=${port%%/*}
}
stop_serve() {  # stop_serve NAME: Ctrl-C ends it, soon and well
  local pid=${peer_pid[$1]} code=0 begun
  begun=$(microseconds)
  kill -INT "$pid"
  wait "$pid" || code=$?
  unset "peer_pid[$1]"
  [ "$code" = 0 ] || fail "$1 ended with $code"
  [ $(($(microseconds) - begun)) -lt 10000000 ] || fail "$1 took more than 10 s to end"
}

# ask METHOD PATH [BODY [HEADER...]]: the whole response. HTTP/1.0, so that a stream has no frames.
ask() {
  local method=$1 path=$2 body=${3:-} header socket
  shift; shift; shift || true
  exec {socket}<>"/dev/tcp/127.0.0.1/$port"
  { printf '%s %s HTTP/1.0\r\nContent-Length: %d\r\n' "$method" "$path" "${#body}"
    [ -z "$body" ] || printf 'Content-Type: application/json\r\n'
    for header in "$@"; do printf '%s\r\n' "$header"; done
    printf '\r\n%s' "$body"; } >&"$socket"
  tr -d '\r' <&"$socket"
  exec {socket}>&-
}
expect() {  # expect WHAT PATTERN TEXT
  grep -q -- "$2" <<<"$3" || fail "$1: expected $2 in: ${3:0:600}"
  echo "ok: $1"
}
complete() {  # complete SEED MAX_TOKENS [FIELDS]: the body of a request
  printf '{"model":"gpt","prompt":"Once upon","seed":%d,"max_tokens":%d,"temperature":0.8%s}' "$1" "$2" "${3:-}"
}
# The text as JSON writes it: pieces of a stream behind each other are the whole.
texts() { sed -n 's/.*"text":"\(.*\)","logprobs".*/\1/p' | tr -d '\n'; }
from_file() { "$weft" generate "$work/gpt.onnx" --threads 1 --prompt "Once upon" --length "$2" --seed "$1"; }
from_service() { "$weft" generate --url "$url" --prompt "Once upon" --length "$2" --seed "$1"; }

start_serve one --chat-template plain
expect "models" '"id":"gpt"' "$(ask GET /v1/models)"
whole=$(ask POST /v1/completions "$(complete 7 40)")
expect "a whole completion" '^HTTP/1.1 200 OK' "$whole"
expect "its usage" '"completion_tokens":40' "$whole"
stream=$(ask POST /v1/completions "$(complete 7 40 ',"stream":true')")
expect "a stream" 'data: \[DONE\]' "$stream"
[ "$(texts <<<"$whole")" = "$(texts <<<"$stream")" ] || fail "a stream and a whole answer differ"
[ -n "$(texts <<<"$whole")" ] || fail "the answer has no text"
echo "ok: whole and stream: the same text"

from_file 7 60 >"$work/file.txt"
from_service 7 60 >"$work/service.txt"
same_file "generate from the file and from the service" "$work/file.txt" "$work/service.txt"

for seed in 1 2 3 4 5 6 7 8; do from_service "$seed" 60 >"$work/alone.$seed"; done
pids=()
for seed in 1 2 3 4 5 6 7 8; do from_service "$seed" 60 >"$work/together.$seed" & pids+=($!); done
for pid in "${pids[@]}"; do wait "$pid" || fail "a stream in company failed"; done
for seed in 1 2 3 4 5 6 7 8; do
  cmp -s "$work/alone.$seed" "$work/together.$seed" || fail "seed $seed has another text in company"
done
cmp -s "$work/alone.1" "$work/alone.2" && fail "two seeds have one text"
echo "ok: eight streams at once: the texts that they have alone"

name=$(sed -n 's/^id: \(.*\)-3$/\1/p' <<<"$stream")
again=$(ask GET "/v1/streams/$name" '' "Last-Event-ID: $name-3")
[ "$(sed -n '/^id: .*-4$/,$p' <<<"$stream")" = "$(sed -n '/^id:/,$p' <<<"$again")" ] || fail "a stream does not go on"
echo "ok: a stream goes on behind Last-Event-ID"

talk() { printf '%s\n' "$@" | "$weft" chat --url "$url" --seed 3 --max-tokens 12 2>"$work/chat.err"; }
talk "Hello" "" "/help" "And you?" >"$work/chat.1"
talk "Hello" "" "/help" "And you?" >"$work/chat.2"
same_file "a conversation twice" "$work/chat.1" "$work/chat.2"
expect "its help" '/new' "$(cat "$work/chat.1")"
# 128 positions: the third message of 50 does not fit beside the first two.
long=$(printf 'x%.0s' {1..40})
talk "$long" "$long" "$long" "$long" >/dev/null
expect "a full context drops the oldest turns" 'oldest turns are left out' "$(cat "$work/chat.err")"
if talk "$(printf 'x%.0s' {1..200})" >/dev/null; then fail "a message beyond the context was taken"; fi
expect "a message beyond the context" "has 2[0-9][0-9] tokens" "$(cat "$work/chat.err")"

refused() {  # refused WHAT STATUS PATTERN RESPONSE
  expect "$1: $2" "^HTTP/1.1 $2" "$4"
  grep -q -- "$3" <<<"$4" || fail "$1: expected $3 in: ${4:0:600}"
}
refused "a field out of range" 400 '"param":"temperature"' "$(ask POST /v1/completions "$(complete 1 5 ',"top_p":1,"temperature":9')")"
refused "a field that is not implemented" 400 '"param":"n"' "$(ask POST /v1/completions "$(complete 1 5 ',"n":2')")"
refused "no JSON" 400 'no JSON' "$(ask POST /v1/completions '{"model":')"
refused "a model that is not there" 404 'model_not_found' "$(ask POST /v1/completions '{"model":"gpt-9","prompt":"a"}')"
refused "prompt and max_tokens beyond the context" 400 'prompt of 9 tokens and max_tokens of 500 go beyond.*128' \
  "$(ask POST /v1/completions "$(complete 1 500)")"
refused "a prompt beyond the context" 400 'has 300 tokens.*128' \
  "$(ask POST /v1/completions "{\"model\":\"gpt\",\"prompt\":\"$(printf 'x%.0s' {1..300})\"}")"
refused "a body that is too large" 413 'bytes' "$(ask POST /v1/completions "$(printf 'x%.0s' {1..1100000})")"
refused "a body of another type" 415 'application/json' "$(ask POST /v1/completions '' 'Content-Type: text/plain')"
refused "a path that is not there" 404 'there is no' "$(ask GET /v2/models)"
if "$weft" generate --url "$url" --model gpt-9 2>"$work/refused.log"; then fail "a model that is not there was taken"; fi
expect "generate says what the service says" "there is no 'gpt-9' here; there is 'gpt'" "$(cat "$work/refused.log")"

for wrong in "" "$work/gpt.onnx --url $url" "$work/gpt.onnx --model gpt" "--url $url --context 9" "--url ftp://a"; do
  # shellcheck disable=SC2086  # several words
  if "$weft" generate $wrong --length 1 >/dev/null 2>"$work/refused.log"; then fail "weft generate $wrong was taken"; fi
done
echo "ok: generate takes a file or a service"

expect "health" '^ok' "$(ask GET /health)"
metrics=$(ask GET /metrics)
for family in weft_http_requests_total weft_http_streams_total weft_http_connections weft_serve; do
  expect "metrics have $family" "^$family" "$metrics"
done

if [ -n "${WEFT_NPM:-}" ] && [ -d "$WEFT_NPM/node_modules/openai" ] && command -v node >/dev/null; then
  node tests/web/openai_serve.cjs "$url" gpt || fail "the openai client does not get along with weft serve"
else
  echo "skipped: the openai client, for WEFT_NPM names no folder with node_modules/openai, or there is no node"
fi

# Ctrl-C while an answer is under way: it may end.
mkfifo "$work/last.out"
from_service 1 119 >"$work/last.out" & generating=$!
exec {last}<"$work/last.out"
read -r -N 10 -t $((60 * slower)) begun <&"$last" || fail "no text came"
stop_serve one
printf '%s' "$begun" | cat - <(cat <&"$last") >"$work/last.txt"
wait "$generating" || fail "the answer that was under way did not end"
from_file 1 119 >"$work/whole.txt"
same_file "Ctrl-C lets an answer end" "$work/whole.txt" "$work/last.txt"

printf '# of the test\nsecret\n' >"$work/keys"
start_serve keys --api-keys "$work/keys"
refused "without a key" 401 'Authorization: Bearer' "$(ask GET /v1/models)"
refused "with another" 401 'Authorization: Bearer' "$(ask GET /v1/models '' 'Authorization: Bearer secrets')"
expect "with the key" '"id":"gpt"' "$(ask GET /v1/models '' 'Authorization: Bearer secret')"
"$weft" generate --url "$url" --key-file "$work/keys" --prompt a --length 3 >/dev/null || fail "generate with a key"
if echo hello | "$weft" chat --url "$url" --key-file "$work/keys" 2>"$work/chat.err"; then fail "it chats without a template"; fi
expect "a model without a chat template" '--chat-template' "$(cat "$work/chat.err")"
stop_serve keys

# One sequence at a time, and 256 that wait: the rest is told to come again.
start_serve busy --sequences 1
sockets=()
body=$(complete 1 100)
for ((i = 0; i < 330; ++i)); do
  exec {socket}<>"/dev/tcp/127.0.0.1/$port"
  printf 'POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' "${#body}" "$body" >&"$socket"
  sockets+=("$socket")
done
response=$(tr -d '\r' <&"${sockets[-1]}")
refused "one too many" 429 '^Retry-After: [1-9]' "$response"
for socket in "${sockets[@]}"; do exec {socket}>&-; done
expect "and then there is room again" '^HTTP/1.1 200' "$(ask POST /v1/completions "$(complete 1 1)")"
stop_serve busy

# A model of any length, whose caches for 5,000 positions take more than 1 MiB.
mkdir "$work/llama"  # a tokenizer beside a model is that model's
gunzip -c tests/incremental/exports/llama.onnx.gz >"$work/llama/llama.onnx"
printf '%s' '{"version":"1.0","added_tokens":[],"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},' \
  '"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}}' >"$work/llama/tokenizer.json"
served=$work/llama/llama.onnx
start_serve small --context 5000 --cache-mib 1
tokens() { printf '{"model":"llama","prompt":[1,2,3],"max_tokens":%d}' "$1"; }
refused "caches that are too small" 400 'a sequence of 4903 tokens needs more memory.*largest that fits has [1-9]' \
  "$(ask POST /v1/completions "$(tokens 4900)")"
expect "and a request that fits them" '"completion_tokens":20' "$(ask POST /v1/completions "$(tokens 20)")"
stop_serve small

if "$weft" serve "$work/gpt.onnx" --http 0.0.0.0:0 2>"$work/open.log"; then fail "it listens to others without a certificate"; fi
expect "an address that others reach" '--http-cert FILE, --http-key FILE and --api-keys FILE' "$(cat "$work/open.log")"

if [ -n "${WEFT_WEB_FAKE_SERVER:-}" ]; then
  served=$work/gpt.onnx
  "$WEFT_WEB_FAKE_SERVER" --tls "$work" </dev/null >/dev/null  # makes the certificate
  start_serve tls --http-cert "$work/web-test-certificate.pem" --http-key "$work/web-test-key.pem" --chat-template plain
  "$weft" generate --url "$url" --ca "$work/web-test-certificate.pem" --prompt "Once upon" --length 60 --seed 7 >"$work/tls.txt"
  same_file "generate over TLS" "$work/file.txt" "$work/tls.txt"
  if "$weft" generate --url "$url" --length 3 2>"$work/tls.err"; then fail "it trusts a certificate of nobody"; fi
  expect "a certificate of nobody" 'not trusted' "$(cat "$work/tls.err")"
  echo hello | "$weft" chat --url "$url" --ca "$work/web-test-certificate.pem" --max-tokens 5 >/dev/null
  stop_serve tls
fi
