#!/usr/bin/env bash
# Runs what the documents tell people to run: the blocks of code of each page, in order, in a scratch folder.
# Those of Python are run where PyTorch is installed for the system's Python, and are skipped elsewhere.
#   tests/docs/run.sh [PAGE...]        README.md and docs/ by default
# A ```sh block is commands. A ```console block is commands after "$ " and what they print; that has to have the
# same form: numbers and their units may differ, "..." stands for any text, and a line "..." for any lines. A comment
# before a block says what else is to be done with it:
#   <!-- docs: skip REASON -->   it cannot run here; the reason is printed
#   <!-- docs: file NAME -->     it is the content of a file
#   <!-- docs: stays -->         its command goes on running; what stands there is the beginning of what it prints
# A token that a page cuts short (weft1-05zg6w...) is the one that was printed in its place. The broker of the pages
# is broker.example.org:7700, the service of a model 127.0.0.1:7781, and gpt.onnx the example. Needs WEFT (the program) and WEFT_DOC_DATA, which makes a model and data.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
weft=$(realpath "${WEFT:-$root/build/release/weft}")
maker=$(realpath "${WEFT_DOC_DATA:-$root/build/release/weft_doc_data}")
patience=${PATIENCE:-120}  # seconds, for one command
ran=0 skipped=0 others=0
pids=()
declare -A token=()

finish() {
  local status=$? pid
  trap - EXIT
  exec 3>&2 2>/dev/null
  for pid in "${pids[@]}"; do kill -KILL "$pid" || true; done
  wait || true
  exec 2>&3
  rm -rf "$work"
  exit "$status"
}
work=$(mktemp -d)
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
unset WEFT WEFT_BROKER WEFT_TOKEN XDG_CONFIG_HOME XDG_DATA_HOME
export HOME=$work/home XDG_RUNTIME_DIR=$work/runtime PATH=$work/bin:$PATH
mkdir -p -m 700 "$work/home" "$work/runtime" "$work/bin" "$work/fashion"
ln -s "$weft" "$work/bin/weft"

free_port() {
  local port
  # Below those that the system gives to connections, which may be in use without anybody listening.
  while port=$((20000 + RANDOM % 12000)); (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
  echo "$port"
}
address=127.0.0.1:$(free_port) service=127.0.0.1:$(free_port)

fail() { echo "FAILED: $place: $*" >&2; exit 1; }

# As it is run here: tokens in full, and the broker on this machine.
localized() {
  local text=$1 short
  for short in "${!token[@]}"; do text=${text//"$short"/"${token[$short]}"}; done
  text=${text//broker.example.org:7700/$address}
  text=${text//127.0.0.1:7781/$service}
  echo "${text//0.0.0.0:7700/$address}"
}

# A line without what may differ from run to run.
form_of() {
  sed -E -e 's/[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?/#/g' -e 's/(# )+/# /g; s/# ([KMGT]i)?B\b/# B/g; s/# ?(ns|us|ms|s|m|h)\b/# s/g; s/(# s )+# s\b/# s/g' <<<"$1"
}

# Whether a printed line has the form of one of the page; takes tokens that the page cuts short.
same_form() {  # same_form EXPECTED PRINTED
  local expected=$1 printed=$2 pattern word index words_there words_here
  read -ra words_there <<<"$expected"
  read -ra words_here <<<"$printed"
  pattern=$(form_of "$(sed -E 's/weft1-[0-9a-z]+\.\.\./.../g' <<<"$(localized "$expected")")")
  pattern=$(sed -e 's/[][\\*?]/\\&/g' -e 's/\.\.\./*/g' <<<"$pattern")
  printed=$(form_of "$printed")
  # shellcheck disable=SC2053  # it is a pattern
  [[ $printed == $pattern ]] || return 1
  for index in "${!words_there[@]}"; do
    word=${words_there[index]}
    if [[ $word == weft1-*... ]]; then token[$word]=${words_here[index]:-}; fi
  done
}

# Compares the lines of a file with those of the page.
compare_lines() {  # compare_lines PRINTED_FILE EXPECTED...
  local printed at=0 gap=0 line
  mapfile -t printed <"$1"; shift
  for line in "$@"; do
    if [ "$line" = ... ]; then gap=1; continue; fi
    while [ "$at" -lt "${#printed[@]}" ] && ! same_form "$line" "${printed[at]}"; do
      [ "$gap" = 1 ] || fail "expected the form of: $line"$'\n'"but it printed:    ${printed[at]}"
      at=$((at + 1))
    done
    [ "$at" -lt "${#printed[@]}" ] || fail "nothing it printed has the form of: $line"
    at=$((at + 1)) gap=0
  done
  [ "$gap" = 1 ] || [ "$at" = "${#printed[@]}" ] || fail "it also printed: ${printed[at]}"
}

run_command() {  # run_command COMMAND EXPECTED...; without EXPECTED anything may be printed
  local command code=0
  command=$(localized "$1"); shift
  (cd "$work/fashion" && timeout "$patience" bash -euo pipefail -c "$command") >"$work/out" 2>&1 </dev/null || code=$?
  [ "$code" = 0 ] || { cat "$work/out" >&2; fail "ended with $code: $command"; }
  [ $# = 0 ] || compare_lines "$work/out" "$@"
}

has_torch() { /usr/bin/python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null; }
run_python() {  # run_python LINES...
  if ! has_torch; then
    skipped=$((skipped + 1)); echo "skipped $place: PyTorch is not here (./dev install torch)"
    return
  fi
  printf '%s\n' "$@" >"$work/block.py"
  run_command "PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 $work/block.py"
  ran=$((ran + 1))
}

# Starts a command that stays; returns once it has printed what the page says.
start_command() {  # start_command COMMAND EXPECTED...
  local command line pipe=$work/pipe.$block printed expected
  command=$(localized "$1"); shift
  mkfifo "$pipe"
  (cd "$work/fashion" && HOME=$work/home.$block exec bash -c "exec $command") >"$pipe" 2>&1 </dev/null &
  pids+=($!)
  exec {printed}<"$pipe"
  for expected in "$@"; do
    read -r -t "$patience" line <&"$printed" || fail "it did not print: $expected"
    same_form "$expected" "$line" || fail "expected the form of: $expected"$'\n'"but it printed:    $line"
  done
  cat <&"$printed" >/dev/null &
  pids+=($!)
}

run_console() {  # run_console STARTER LINES...: each "$ " begins a command
  local starter=$1 line said=()
  shift
  for line in "$@" '$ '; do
    if [[ $line != '$ '* ]]; then said+=("$line"); continue; fi
    [ ${#said[@]} = 0 ] || "$starter" "${said[@]}"
    said=("${line#'$ '}")
  done
}

run_block() {  # run_block DIRECTIVE LANGUAGE LINES...
  local directive=$1 language=$2
  shift 2
  case "$directive $language" in
    skip*) skipped=$((skipped + 1)); echo "skipped $place: ${directive#skip }"; return ;;
    file*) printf '%s\n' "$@" >"$work/fashion/${directive#file }" ;;
    "stays console") run_console start_command "$@" ;;
    " console") run_console run_command "$@" ;;
    " python") run_python "$@"; return ;;
    " sh") run_command "$(printf '%s\n' "$@")" ;;
    " "*) others=$((others + 1)); return ;;  # a picture, or an example of something else
    *) fail "there is no '$directive' for $language" ;;
  esac
  ran=$((ran + 1))
}

run_page() {
  local page=$1 line number=0 directive='' language='' inside=0 lines=()
  while IFS= read -r line; do
    number=$((number + 1))
    if [[ $line == '```'* ]] && [ "$inside" = 0 ]; then
      inside=1 language=${line#'```'} lines=() place="${page#"$root"/}:$number" block=$((block + 1))
    elif [[ $line == '```' ]]; then
      run_block "$directive" "$language" "${lines[@]}"
      inside=0 directive=''
    elif [ "$inside" = 1 ]; then
      lines+=("$line")
    elif [[ $line =~ ^'<!-- docs: '(.*)' -->'$ ]]; then
      directive=${BASH_REMATCH[1]}
    elif [ -n "$directive" ]; then
      place="${page#"$root"/}:$number"
      fail "no block of code follows 'docs: $directive'"
    fi
  done <"$page"
}

pages=("$@")
[ $# -gt 0 ] || mapfile -t pages < <(printf '%s\n' "$root"/README.md; find "$root/docs" -name '*.md' | sort)
block=0 place=start
(cd "$work/fashion" && cp "$root/examples/fashion-mnist/model.onnx" . && cp "$root/examples/gpt/model.onnx" gpt.onnx && "$maker" train.npz 2000 && "$maker" test.npz 500)
for page in "${pages[@]}"; do run_page "$page"; done
echo "ok: $ran blocks ran, $skipped were skipped, $others are none to run"
