#!/usr/bin/env bash
# How many samples a second homes reach together over slow lines: as the planner's best (a pipeline, its links compressed as
# it likes, or one machine alone), and as replicas that agree every 30 steps. A broker and peers as processes of their own,
# each in a region of its own behind an emulated line; their devices compute nothing and take as long as TYPE would.
#   bench/replicas/speed.sh [RATE...]      8Mbit 20Mbit 100Mbit
# HOMES (6) peers; DEVICE (null:gtx1080ti/16), WIDTH (512), LAYERS (4), LENGTH (192) and BATCH (16) say what a step takes:
# 0.12 s on one. SLOW (0): so many of the homes have SLOW_DEVICE (null:gtx1080ti/48), and replicas run once more with shares
# of a round by speed. SITE (1) of them are at one place (homes.sh): a replica is one place, in as many stages.
# MEASURED (45): so many seconds the peers of places have to be measured with each other, before anything is planned. CODEC
# (topk:0.02:int4) of what they tell each other; OVERLAP (0): they run once more with rounds that overlap, and all have the same
# weights every so many of them. SECONDS_EACH (60): how long each is watched once it runs. A rate takes 4 minutes.
# First one place alone trains, the last; of-sum: of so many times what it reaches (where some are slow, of what nobody reaches).
rates=("${@:-8Mbit}"); [ $# -gt 0 ] || rates=(8Mbit 20Mbit 100Mbit)
source "$(dirname "$0")/../../tests/e2e/cluster.sh"
source bench/replicas/homes.sh
homes=${HOMES:-6} slow=${SLOW:-0} slow_device=${SLOW_DEVICE:-null:gtx1080ti/48} each=${SECONDS_EACH:-60}
codec=${CODEC:-topk:0.02:int4} overlap=${OVERLAP:-0}
cluster_begin
made_home_job

# samples_a_second [SUBMIT ARGS]: of the job while it is watched; PLAN is what the planner says of it.
samples_a_second() {
  submit_home_job "$@"
  wait_for_event '"event":"plan"' 300
  PLAN=$(sed -E 's/.*"lines":\["([^"]*)".*/\1/' <<<"$LINE") PREDICTED=$(field predicted_samples_per_second <<<"$LINE")
  wait_for_step $((every + 1))
  watch_samples "$each"
}

printf '%-9s %-9s %10s %10s %7s %7s  %s\n' line as samples/s predicted times of-sum plan
for rate in "${rates[@]}"; do
  made_home_lines "$homes" "$rate"
  best= sum=
  for as in alone best replicas $([ "$slow" -eq 0 ] || echo shares) $([ "$overlap" -eq 0 ] || echo overlap); do
    start_broker
    there=$homes
    [ "$as" != alone ] || there=$site
    for ((i = homes - there; i < homes; ++i)); do
      join_home "$i" "$([ "$i" -ge "$slow" ] || echo "$slow_device")"
    done
    for ((i = homes - there; i < homes; ++i)); do wait_for_log "$work/home$i.log" 'info joined'; done
    [ "$site" -eq 1 ] || sleep "${MEASURED:-45}"
    case $as in
      alone) samples_a_second --set "placement.stages=$site"
             sum=$(awk -v a="$RATE" -v n=$((homes / site)) 'BEGIN { print a * n }') ;;
      best) samples_a_second --set compression.policy=auto
            best=$RATE ;;
      *) more=
         [ "$as" != shares ] || more=', shares: auto'
         [ "$as" != overlap ] || more=", overlap: true, settle_every: $overlap"
         samples_a_second --set "replicas=$((homes / site))" --set "placement.stages=$site" --set "sync={every: $every, codec: '$codec'$more}" ;;
    esac
    printf '%-9s %-9s %10s %10.1f %7s %7s  %s\n' "$rate" "$as" "$RATE" "$PREDICTED" \
      "$(awk -v a="$RATE" -v b="$best" 'BEGIN { if (b > 0) printf "%.2f", a / b; else print "-" }')" \
      "$(awk -v a="$RATE" -v b="$sum" 'BEGIN { printf "%.2f", a / b }')" "$PLAN"
    end_homes
  done
done
