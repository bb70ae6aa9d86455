#include "ui/job_history.h"

#include <limits>
#include <string_view>

#include "base/printable.h"

namespace weft::ui {

using proto::JobEvent;
using proto::JobEventKind;

namespace {

constexpr size_t kTextMax = 2000, kPlanLinesMax = 400;

template <typename T>
void push(std::deque<T>& list, T item, size_t most) {
  if (list.size() >= most) list.pop_front();
  list.push_back(std::move(item));
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty() && lines.size() < kPlanLinesMax) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (!line.empty()) lines.push_back(printable(line.substr(0, kTextMax)));
  }
  return lines;
}

}  // namespace

void JobHistory::say(const JobEvent& event, std::string kind, const std::string& text) {
  push(lines_,
       HistoryLine{event.unix_ms, event.step, std::move(kind),
                   printable(std::string_view(text).substr(0, kTextMax))},
       kLinesMax);
}

// A job that was resumed does steps again that came behind its checkpoint.
void JobHistory::add_step(const JobEvent& event) {
  steps_.drop_while([&](const StepPoint& point) { return point.step >= event.step; });
  evaluations_.drop_while([&](const EvaluationPoint& point) { return point.step >= event.step; });
  steps_.add({event.step, event.skipped ? std::numeric_limits<double>::quiet_NaN() : event.loss,
              event.samples_per_second});
}

void JobHistory::add_evaluation(const JobEvent& event) {
  evaluations_.drop_while([&](const EvaluationPoint& point) { return point.step >= event.step; });
  EvaluationPoint point{event.step, {}};
  for (const auto& [name, value] : event.metrics)
    if (point.metrics.size() < kMetricsMax) point.metrics[printable(name.substr(0, 64))] = value;
  evaluations_.add(point);
}

void JobHistory::add_plan(const JobEvent& event) {
  PastPlan plan{event.unix_ms, event.step, event.seconds, event.samples_per_second, {}, lines_of(event.text)};
  for (const std::string& peer : event.peers) plan.peers.push_back(printable(peer));
  say(event, "plan", plan.lines.empty() ? "a new plan" : plan.lines.front());
  push(plans_, std::move(plan), kPlansMax);
}

void JobHistory::add(const JobEvent& event) {
  if (event.sequence < next_) return;
  next_ = event.sequence + 1;
  switch (event.kind) {
    case JobEventKind::Step:
      return add_step(event);
    case JobEventKind::Evaluation:
      return add_evaluation(event);
    case JobEventKind::Plan:
      return add_plan(event);
    case JobEventKind::State:
      return say(event, "state",
                 std::string(to_string(event.state)) + (event.text.empty() ? "" : ": " + event.text));
    case JobEventKind::Checkpoint:
      return say(event, "checkpoint", "checkpoint after step " + std::to_string(event.step));
    case JobEventKind::Notice:
      return say(event, "notice", event.text);
    case JobEventKind::Result:
      return;
  }
}

}  // namespace weft::ui
