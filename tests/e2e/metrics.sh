#!/usr/bin/env bash
# What a broker and a peer count, for Prometheus: promtool reads it, a Prometheus scrapes it and answers a query, a kill
# is one recovery, a job that ended leaves no series. Without promtool and prometheus (Debian's package) the rest is tried.
#   metrics.sh [--quick]      without --quick Prometheus scrapes for a minute
source "$(dirname "$0")/cluster.sh"
scrapes=60
[ "${1:-}" != --quick ] || scrapes=5
cluster_begin
take_model gpt3
prometheus_pid=
end_all() { [ -z "$prometheus_pid" ] || kill -KILL "$prometheus_pid" 2>/dev/null || true; cluster_end; }
trap end_all EXIT

start_broker --lease 3s --copy-rate 1Gbit --metrics 127.0.0.1:0
url=
while [ -z "$url" ] && read -r -t $((60 * slower)) line <&"$broker_out"; do
  [[ $line != "metrics: http://"* ]] || url=${line#metrics: http://}
done
[ -n "$url" ] || fail "the broker does not say where its metrics are"
at=${url%/metrics}
wait_for_log "$work/broker.log" "info listening"

page() {  # page HOST:PORT: what /metrics says
  local out
  exec 7<>"/dev/tcp/${1%:*}/${1#*:}"
  printf 'GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n' >&7
  out=$(cat <&7)
  exec 7<&-
  [[ $out == "HTTP/1.1 200 OK"* ]] || fail "$1 answered: ${out%%$'\r'*}"
  sed '1,/^\r*$/d' <<<"$out"
}
value() { page "$at" | awk -v name="$1" '{ at = index($0, name " "); if (at == 1) print $2 }'; }
# Until the series has the value; the job's steps are the clock.
wait_for_value() { until [ "$(value "$1")" = "$2" ]; do next_step; done; }

for name in a b c; do start_peer "$name" --device cpu:1 --listen 127.0.0.1:0; done
submit_job "$work/job.yaml" --set schedule=null --set steps=1000000 --set placement.stages=2
wait_for_step 5
wait_for_pool 1
wait_for_value 'weft_peers{state="active"}' 2
wait_for_value 'weft_peers{state="pool"}' 1
wait_for_value 'weft_jobs{state="running"}' 1
[ "$(value 'weft_recoveries_total')" = 0 ] || fail "it counts recoveries that nobody saw"
[ "$(value 'weft_job_step{job="'"$job_number"'"}')" -ge 5 ] || fail "its step is not told"
page "$at" | grep '^weft_link_sent_bytes_total{from="[abc]",to="[abc]"} [1-9]' >/dev/null || fail "its links are not told"
until [ "$(value weft_blob_bytes)" -gt 0 ]; do next_step; done  # it looks every 5 s
echo "ok: peers, jobs, steps, links and blobs are told"

page "$at" >"$work/page"
for name in $(grep -oh 'weft_[a-z_]*' packaging/monitoring/* | sed 's/_\(bucket\|count\|sum\)$//' | sort -u); do
  grep -q "^# TYPE $name " "$work/page" || fail "packaging/monitoring speaks of $name, which the page has not"
done
echo "ok: alarm rules and dashboard speak of what there is"

if command -v promtool >/dev/null; then
  promtool check metrics <"$work/page"
  promtool check rules packaging/monitoring/weft.rules.yaml
  echo "ok: promtool finds nothing wrong with the page and the alarm rules"
else
  echo "skipped: promtool is not installed (apt install prometheus)" >&2
fi

if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
  cat >"$work/prometheus.yaml" <<YAML
global: {scrape_interval: 1s, evaluation_interval: 1s}
scrape_configs: [{job_name: weft, honor_labels: true, static_configs: [{targets: ["$at"]}]}]
rule_files: ["$PWD/packaging/monitoring/weft.rules.yaml"]
YAML
  port=0
  while port=$((20000 + RANDOM % 12000)); (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done  # not the system's own
  prometheus --config.file="$work/prometheus.yaml" --storage.tsdb.path="$work/tsdb" --web.listen-address="127.0.0.1:$port" \
    >"$work/prometheus.log" 2>&1 &
  prometheus_pid=$!
  query() { promtool query instant "http://127.0.0.1:$port" "$1" 2>/dev/null || true; }
  until [[ $(query "count_over_time(up{job=\"weft\"}[5m])") =~ \ =\>\ ([0-9]+) && ${BASH_REMATCH[1]} -ge $scrapes ]]; do
    kill -0 "$prometheus_pid" 2>/dev/null || fail "prometheus ended"
    next_step
  done
  [[ $(query "min_over_time(up{job=\"weft\"}[5m])") == *"=> 1 "* ]] || fail "a scrape failed"
  answer=$(query "max_over_time(weft_job_step{job=\"$job_number\"}[5m])")
  [[ $answer =~ \ =\>\ ([0-9]+) && ${BASH_REMATCH[1]} -ge 5 ]] || fail "prometheus answered: $answer"
  [[ $(query "histogram_quantile(0.5, rate(weft_step_seconds_bucket[1m]))") == *"=>"* ]] || fail "no quantile of steps"
  echo "ok: prometheus scraped $scrapes times and answers: $answer"
  kill -TERM "$prometheus_pid"
  wait "$prometheus_pid" || true
  prometheus_pid=
else
  echo "skipped: prometheus is not installed (apt install prometheus)" >&2
fi

lose_peer "$(one_of $(active_peers))"
wait_for_recovery
wait_for_value 'weft_recoveries_total' 1
wait_for_value 'weft_peers{state="gone"}' 1
echo "ok: a kill is one recovery"

# A peer's own, and what it says of its work.
left=$(one_of $(active_peers))
wait_for_log "$work/$left.log" "info at_work job=$job_number"
[[ $LINE == *'name="'* && $LINE == *'for="'* ]] || fail "$left does not say for whom it works: $LINE"
start_peer own --device cpu:1 --metrics 127.0.0.1:0
wait_for_log "$work/own.log" "info metrics address="
own=${LINE#*http://} own=${own%/metrics}
until page "$own" | grep -qx 'weft_peer_joined 1'; do next_step; done
if command -v promtool >/dev/null; then page "$own" | promtool check metrics; fi
echo "ok: a peer has a page of its own"

"$weft" stop "$job_number" >/dev/null
finish_job
page "$at" | grep -q '^weft_step_seconds_count [1-9]' || fail "its steps are not counted"
until ! page "$at" | grep -q '^weft_job_step{\|^weft_link_sent_bytes_total{'; do :; done
echo "ok: the job that ended has no series"
echo "metrics: all is well"
