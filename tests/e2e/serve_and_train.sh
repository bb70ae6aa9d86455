#!/usr/bin/env bash
# Peers that serve a model and train another one at once: the three stages of each stand on the same three peers. Texts are
# those of one machine and the training's file is that of `weft local`, while it goes on undisturbed, while a peer of
# both is killed and somebody takes both its stages, and while the broker is.
#   serve_and_train.sh [--quick]
source "$(dirname "$0")/cluster.sh"
cluster_begin
cp -r examples/gpt "$work/gpt"
made_text 60000 >"$work/gpt/corpus.txt"
prompt='Once upon' texts=4 length=60
[ "${1:-}" != --quick ] || texts=3 length=30

peer() { start_peer "$1" --device cpu:1 --memory 1GiB --listen 127.0.0.1:0 "${@:2}"; }
generate() { "$weft" generate "$@" --prompt "$prompt" --length "$length"; }
# As a client that tries again while the door has no peers; the text must be the same however often.
texts_as_alone() {  # texts_as_alone WHAT
  local seed asked=()
  for ((seed = 1; seed <= texts; ++seed)); do
    generate --url "http://$url/v1" --seed "$seed" >"$work/door.$seed" 2>"$work/door.$seed.err" & asked+=($!)
  done
  for ((seed = 1; seed <= texts; ++seed)); do
    wait "${asked[seed - 1]}" || fail "$1: a text ended otherwise: $(cat "$work/door.$seed.err")"
    cmp -s "$work/file.$seed" "$work/door.$seed" || fail "$1: seed $seed has another text than on one machine"
  done
  echo "ok: $1: $texts texts are those of one machine"
}
stages_of() { "$weft" status "$1" | awk '$1 == "stage" && $2 ~ /^[0-9]+$/ { print $3 }' | sort; }

# What both shall come to. The training goes on until it is told to end: texts take as long as they take. Its batches are
# small, for all of it is made again on one machine.
settings=(--set batch_size=4 --set microbatch_size=2 --set schedule=null --set steps=2000 --set evaluate_every=null
          --set checkpoint=null)
cat >"$work/gpt/served.yaml" <<YAML
format: 1
model: model.onnx
task: serve
serve: {name: gpt}
placement: {stages: 3}
YAML
for ((seed = 1; seed <= texts; ++seed)); do generate "$work/gpt/model.onnx" --threads 1 --seed "$seed" >"$work/file.$seed"; done

start_broker_with_door --lease 3s
for name in a b c; do peer "$name"; done
peer alone --jobs 1
"$weft" submit "$work/gpt/served.yaml" >"$work/serve.log" 2>&1 --set "placement={stages: 3, exclude: [alone]}" --detach || fail "serving: $(tail -n 3 "$work/serve.log")"
served=1
wait_for_log "$work/broker.log" 'reason="serves as gpt"'
texts_as_alone "before anything trains"

submit_job "$work/gpt/job.yaml" "${settings[@]}" --set "placement={stages: 3, exclude: [alone]}" --set "output=$work/trained.onnx"
wait_for_step 3
[ "$(stages_of "$job_number")" = "$(printf '%s\n' a b c)" ] || fail "it trains on: $(stages_of "$job_number")"
[ "$(stages_of "$served")" = "$(printf '%s\n' a b c)" ] || fail "it serves on: $(stages_of "$served")"
texts_as_alone "beside a training on the same three peers"

# With the peer a stage of each is lost; nobody is idle but who works on one job at a time, and is excluded.
lose_peer b
peer d
wait_for_recovery
texts_as_alone "a peer of both was killed"
for job in "$job_number" "$served"; do
  [ "$(stages_of "$job")" = "$(printf '%s\n' a c d)" ] || fail "job $job goes on with: $(stages_of "$job")"
done
echo "ok: one peer took both stages"

# Until a job's log has the text.
wait_in_log_of() {  # wait_in_log_of JOB TEXT
  local lines log_pid found=
  exec {lines}< <(exec "$weft" logs -f "$1" 2>&1)
  log_pid=$!
  while [ -z "$found" ] && read -r -t $((60 * slower)) LINE <&"$lines"; do [[ $LINE != *"$2"* ]] || found=1; done
  kill "$log_pid" 2>/dev/null || true
  exec {lines}<&-
  [ -n "$found" ] || fail "job $1 does not say: $2"
}
end_process KILL "$broker_pid"
start_broker_with_door --lease 3s
for job in "$job_number" "$served"; do wait_in_log_of "$job" 'all 3 stages came back'; done
echo "ok: every stage of both was resumed"
texts_as_alone "the broker was killed"

stop_job "$work/trained.onnx"
"$weft" local "$work/gpt/job.yaml" --threads 1 "${settings[@]}" --set "steps=$STEPS" --set "output=$work/local.onnx" \
  >"$work/local.log" 2>&1 || fail "weft local: $(tail -n 3 "$work/local.log")"
same_file "three peers that served meanwhile and weft local, $STEPS steps" "$work/local.onnx" "$work/trained.onnx"
texts_as_alone "after the training"
"$weft" stop "$served" >/dev/null
