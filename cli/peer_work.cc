#include "cli/peer_work.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/live_line.h"
#include "cli/quantities.h"

namespace weft::cli {
namespace {

using peer::PeerActivity;
using peer::WorkAtHand;
using peer::WorkDone;

bool is_same(const WorkAtHand& a, const WorkAtHand& b) {
  return a.job == b.job && a.seat == b.seat && a.stage_count == b.stage_count && a.is_ready == b.is_ready;
}

WorkDone sum(const WorkDone& a, const WorkDone& b) {
  return {.stages = a.stages + b.stages,
          .steps = a.steps + b.steps,
          .tokens = a.tokens + b.tokens,
          .seconds_busy = a.seconds_busy + b.seconds_busy,
          .bytes_sent = a.bytes_sent + b.bytes_sent};
}

std::string amount(const WorkDone& done) {
  std::string text =
      fmt::format("{} steps in {} of computing, {} sent", done.steps, format_duration(done.seconds_busy),
                  format_bytes(static_cast<int64_t>(done.bytes_sent)));
  if (done.tokens > 0) text += fmt::format(", {} tokens", done.tokens);
  return text;
}

std::string of_whom(const WorkAtHand& work) {
  std::string text = fmt::format("job {}", work.job);
  if (!work.job_name.empty()) text += fmt::format(" ({})", printable(work.job_name));
  if (!work.submitter.empty()) text += fmt::format(" for {}", printable(work.submitter));
  return text;
}

std::string fields(const WorkAtHand& work) {
  return fmt::format("job={} name=\"{}\" for=\"{}\" stage=\"{} of {}\" step={}", work.job, work.job_name,
                     work.submitter, work.seat.stage + 1, work.stage_count, work.step);
}

}  // namespace

std::string describe(const PeerActivity& activity) {
  std::string text;
  if (!activity.is_joined) text = "the broker is not there";
  for (const WorkAtHand& work : activity.work) {
    const char* what = !work.is_ready ? "loading" : work.serves ? "serving" : "training";
    text += fmt::format("{}{} stage {} of {} of {}", text.empty() ? "" : "; ", what, work.seat.stage + 1,
                        work.stage_count, of_whom(work));
    if (work.is_ready && !work.serves) text += fmt::format(", step {}", work.step);
  }
  if (text.empty()) text = "idle: no job needs this peer now";
  return text + "; so far " + amount(activity.done);
}

void PeerWork::begin_visit() {
  before_ = sum(before_, last_.done);
  last_ = {};
  idle_said_ = false;
}

WorkDone PeerWork::done() const { return sum(before_, last_.done); }

std::string PeerWork::totals() const { return fmt::format("so_far=\"{}\"", amount(done())); }

std::vector<std::string> PeerWork::lines(const PeerActivity& activity, Instant now) {
  std::vector<std::string> lines;
  const std::vector<WorkAtHand> before = last_.work;
  last_ = activity;
  const auto was_there = [&](const WorkAtHand& work) {
    return std::ranges::any_of(before, [&](const WorkAtHand& old) { return is_same(old, work); });
  };
  for (const WorkAtHand& work : activity.work)
    if (!was_there(work)) {
      lines.push_back(fmt::format("info {} {}", work.is_ready ? "at_work" : "loading", fields(work)));
      since_ = now;
    }
  if (!activity.work.empty()) {
    idle_said_ = false;
    if (now - since_ < kEvery) return lines;
    since_ = now;
    for (const WorkAtHand& work : activity.work)
      lines.push_back(fmt::format("info working {} {}", fields(work), totals()));
  } else if (activity.is_joined && !idle_said_) {
    idle_said_ = true;
    lines.push_back("info idle reason=\"no job needs this peer now\" " + totals());
  }
  return lines;
}

Metrics peer_metrics(const PeerActivity& activity, const WorkDone& done, bool is_away) {
  Metrics metrics;
  const auto gauge = [&](const char* name, const char* help, double value) {
    metrics.declare_gauge(name, help);
    metrics.set(name, value);
  };
  const auto counter = [&](const char* name, const char* help, double value) {
    metrics.declare_counter(name, help);
    metrics.add(name, value);
  };
  gauge("weft_peer_joined", "Whether the broker has admitted this peer.", activity.is_joined);
  gauge("weft_peer_paused", "Whether its owner's pause or hours keep it away.", is_away);
  gauge("weft_peer_stages", "Stages that it holds.", static_cast<double>(activity.work.size()));
  metrics.declare_gauge("weft_job_step", "The last step that this peer's stage has done.");
  for (const WorkAtHand& work : activity.work)
    metrics.set("weft_job_step", static_cast<double>(work.step), {{"job", std::to_string(work.job)}});
  counter("weft_peer_steps_total", "Training steps that its stages have done.",
          static_cast<double>(done.steps));
  counter("weft_peer_tokens_total", "Tokens that it has drawn for served models.",
          static_cast<double>(done.tokens));
  counter("weft_peer_busy_seconds_total", "Time in which it computed training steps.", done.seconds_busy);
  counter("weft_peer_sent_bytes_total", "Bytes of tensors that it sent to other peers.",
          static_cast<double>(done.bytes_sent));
  metrics.declare_gauge("weft_build_info", "Which weft this is; the value is 1.");
  metrics.set("weft_build_info", 1,
              {{"version", WEFT_VERSION},
               {"role", "peer"},
               {"protocol", fmt::format("{}.{}", proto::kProtocolMajor, proto::kProtocolMinor)}});
  return metrics;
}

}  // namespace weft::cli
