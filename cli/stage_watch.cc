#include "cli/stage_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/quantities.h"

namespace weft::cli {
namespace {

constexpr uint64_t kTensorBytes = 64;  // a link over which less was sent carried acknowledgements alone

std::string line_of(const proto::StageStatus& stage) {
  std::string line = fmt::format("{}  {}", plan::to_string(stage.seat), stage.peer_name);
  if (!stage.region.empty()) line += fmt::format(" ({})", stage.region);
  line += fmt::format("  {:.0f}% busy", 100 * stage.busy);
  for (const proto::LinkUse& link : stage.links) {
    const bool sends = link.bytes_sent >= kTensorBytes, waits = link.seconds_waiting >= 0.0005;
    if (sends)
      line += fmt::format("  to {}: {} a step", plan::to_string(link.seat),
                          format_bytes(static_cast<int64_t>(link.bytes_sent)));
    if (sends && link.way != proto::LinkWay::Unsaid)
      line += link.way == proto::LinkWay::Direct ? ", directly" : ", by relay";
    if (link.bytes_encoded > 0) {
      line += fmt::format(" ({:.1f} times smaller",
                          static_cast<double>(link.bytes_dense) / static_cast<double>(link.bytes_encoded));
      line += link.errors > 0 ? fmt::format(", error {:.2g}%)", 100 * link.error_sum / link.errors) : ")";
    }
    if (!waits) continue;
    const std::string whom = sends ? "it" : plan::to_string(link.seat);
    line += fmt::format("{} waited {:.0f} ms for {}", sends ? "," : " ", 1000 * link.seconds_waiting, whom);
  }
  return line;
}

bool has_worked(const proto::StageStatus& stage) { return stage.busy > 0 || !stage.links.empty(); }

}  // namespace

std::vector<std::string> stage_lines(const proto::JobStatus& status) {
  std::vector<std::string> lines;
  lines.reserve(status.stages.size());
  for (const proto::StageStatus& stage : status.stages) lines.push_back(line_of(stage));
  if (const proto::LinkComparison& c = status.comparison; c.step != 0)
    lines.push_back(fmt::format(
        "compressed links, after step {}: loss {:.4f}, dense {:.4f}; gradient of a microbatch {:.2g}% off, "
        "cosine {:.4f}",
        c.step, c.loss, c.loss_dense, 100 * c.gradient_error, c.gradient_cosine));
  return lines;
}

std::string saving_line(const proto::JobStatus& status) {
  if (status.saving.step == 0) return "";
  return fmt::format("saving checkpoint after step {}: {}", status.saving.step,
                     format_bytes_of(status.saving.saved.value, status.saving.bytes.value));
}

void StageWatch::average(const proto::StageStatus& now, Watched& stage) const {
  const proto::StageStatus before = std::exchange(stage.average, now);
  if (!std::exchange(stage.known, true)) return;
  const auto mean = [](double old, double fresh) { return old + kNewWeight * (fresh - old); };
  stage.average.busy = mean(before.busy, now.busy);
  for (proto::LinkUse& link : stage.average.links)
    for (const proto::LinkUse& old : before.links)
      if (old.seat == link.seat) link.seconds_waiting = mean(old.seconds_waiting, link.seconds_waiting);
}

std::vector<std::string> StageWatch::changes(const proto::JobStatus& status) {
  if (status.plan_version != plan_version_ || status.stages.size() != stages_.size())
    stages_.assign(status.stages.size(), {});
  plan_version_ = status.plan_version;
  std::vector<std::string> lines;
  for (size_t s = 0; s < stages_.size(); ++s) {
    Watched& stage = stages_[s];
    const proto::StageStatus& now = status.stages[s];
    if (!has_worked(now)) continue;
    if (stage.known && stage.average.peer != now.peer) stage = {};
    average(now, stage);
    if (stage.shown && std::abs(stage.average.busy - stage.busy_shown) < kBusyChange) continue;
    stage.shown = true;
    stage.busy_shown = stage.average.busy;
    lines.push_back((plan_version_ > 1 ? fmt::format("plan {}: ", plan_version_) : "") +
                    line_of(stage.average));
  }
  return lines;
}

std::string StageWatch::brief() const {
  std::vector<double> busy;
  for (const Watched& stage : stages_)
    if (stage.known) busy.push_back(100 * stage.average.busy);
  if (busy.empty() || busy.size() < stages_.size()) return "";
  if (busy.size() > kBriefStages) {
    const auto [least, most] = std::minmax_element(busy.begin(), busy.end());
    return fmt::format("busy {:.0f} to {:.0f}%", *least, *most);
  }
  std::string text = "busy";
  for (const double share : busy) text += fmt::format(" {:.0f}", share);
  return text + "%";
}

}  // namespace weft::cli
