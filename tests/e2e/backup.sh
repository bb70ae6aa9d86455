#!/usr/bin/env bash
# The lines of docs/BROKER.md for a backup and a restore, as they stand there: a job's weights, the tokens and the
# broker's identity survive the loss of its data directory, and a backup that was made while a job ran goes on with it.
#   backup.sh [--quick]
source "$(dirname "$0")/cluster.sh"
command -v sqlite3 >/dev/null || { echo "skipped: sqlite3 is not installed (apt install sqlite3)" >&2; exit 77; }
cluster_begin
take_model gpt3
export DATA=$work/broker BACKUP=$work/backup

# The block of code of that heading.
block() { awk -v head="## $1" '$0 == head { on = 1 } on && /^```/ { if (inside) exit; inside = 1; next } inside' docs/BROKER.md; }
back_up() { bash -euc "$(block 'Back up')"; }
# Without its last line, which starts the broker where others reach it.
restore() { bash -euc "$(block Restore | grep -v '^weft broker ')"; }
[ -n "$(block 'Back up')" ] && [ -n "$(block Restore)" ] || fail "docs/BROKER.md has no such lines"

start_broker --lease 3s
start_peer a --device cpu:1
submit_job "$work/job.yaml" --set schedule=null --set steps=20
finish_job
"$weft" fetch "$job_number" -o "$work/before.onnx" >/dev/null
first=$job_number
submit_job "$work/job.yaml" --set schedule=null --set steps=1000000 --set checkpoint.steps=5
wait_for_event '"event":"checkpoint"'
back_up
echo "ok: backed up while job $job_number runs"

end_process KILL "$broker_pid"
end_process KILL "$submit_pid"
rm -rf "$DATA"
restore
[ "$(stat -c %a "$DATA")" = 700 ] || fail "others may read $DATA"
start_broker --lease 3s  # on the same port, with the same tokens
"$weft" fetch "$first" -o "$work/after.onnx" >/dev/null
same_file "what job $first learnt, from the backup" "$work/before.onnx" "$work/after.onnx"
# Steps of before the backup stand in the log: the run has to get past them.
before=$("$weft" logs "$job_number" --format json | grep '"event":"step"' | tail -n 1 | field step)
open_events
"$weft" logs "$job_number" --follow --format json >"$work/events.pipe" 2>>"$work/submit.log" &
submit_pid=$!
exec {events}<"$work/events.pipe"
wait_for_event '"state":"running"'
wait_for_step $((before + 5))
"$weft" stop "$job_number" >/dev/null
finish_job
steps_are_whole "$(field steps <<<"$LINE")"
echo "ok: job $job_number went on from the backup"

# Retention: what would go is said beside the broker, and goes once that has ended.
"$weft" broker gc --data-dir "$DATA" --keep 1s --dry-run >"$work/would"
if "$weft" broker gc --data-dir "$DATA" --keep 1s 2>"$work/refused"; then fail "it collects beside a broker that runs"; fi
grep -q -- --keep "$work/refused" || fail "it does not say what to do: $(cat "$work/refused")"
end_process TERM "$broker_pid"
"$weft" broker gc --data-dir "$DATA" --keep 1s --format json >"$work/went"
grep -q "\"jobs\":\[$first[],]" "$work/went" || fail "not what was expected went: $(cat "$work/went")"
start_broker
! "$weft" status "$first" >/dev/null 2>&1 || fail "job $first is still known"
submit_job "$work/job.yaml" --set schedule=null --set steps=5
[ "$job_number" -gt "$first" ] || fail "a number was given again"
finish_job
echo "ok: what ended jobs left is gone, and numbers go on"
# It looks at its start, and then every half an hour: it is started until the job has ended for long enough.
for ((i = 0; i < 40; ++i)); do
  "$weft" status "$job_number" >/dev/null 2>&1 || break
  end_process TERM "$broker_pid"
  start_broker --keep 1s
done
! "$weft" status "$job_number" >/dev/null 2>&1 || fail "job $job_number is still known to a broker with --keep"
grep -q "info jobs_forgotten .*last=$job_number" "$work/broker.log" || fail "it does not say what it forgot"
echo "ok: a broker with --keep forgets by itself"
echo "backup: all is well"
