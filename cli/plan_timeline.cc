#include "cli/plan_timeline.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "plan/schedule.h"

namespace weft::cli {
namespace {

// A segment of a stage: its forward, or its backward. A stage that computes nothing in one of them passes
// through it in no time.
constexpr uint32_t kForward = 0, kBackward = 1, kSegments = 2;

class Play {
 public:
  Play(const plan::Plan& plan, const plan::ClusterView& cluster, uint32_t microbatches)
      : plan_(plan), microbatches_(microbatches), stages_(plan.stages.size()) {
    for (Stage& stage : stages_)
      for (auto& arrivals : stage.arrivals) arrivals.resize(microbatches);
    for (const plan::PlannedLink& link : plan.links) {
      const plan::LinkView over = cluster.link(plan.stages[link.from_stage].devices.front(),
                                               plan.stages[link.to_stage].devices.front());
      const bool forward = link.from_stage < link.to_stage;
      const uint32_t segment = forward ? kForward : kBackward;
      const double busy = static_cast<double>(link.bytes.value) / over.bytes_per_second;
      links_.push_back({link.from_stage, link.to_stage, segment, busy, seconds(over.latency), 0});
      ++stages_[link.to_stage].expected[segment];
    }
  }

  Timeline run() {
    Timeline timeline{.stages = std::vector<std::vector<TimelineTask>>(stages_.size()),
                      .microbatches = microbatches_};
    for (uint32_t s = 0; s < stages_.size(); ++s) start(s, timeline);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      take(event);
      start(event.stage, timeline);
    }
    timeline.seconds = now_;
    return timeline;
  }

 private:
  struct Stage {
    std::vector<uint32_t> done = {0, 0};
    uint32_t expected[kSegments] = {0, 0};      // messages, of a microbatch
    std::vector<uint32_t> arrivals[kSegments];  // by microbatch
    bool busy = false;
  };
  struct Link {
    uint32_t from = 0, to = 0, segment = 0;
    double busy_seconds = 0, latency = 0, free_at = 0;
  };
  struct Event {
    double time = 0;
    uint64_t number = 0;
    uint32_t stage = 0, segment = 0, microbatch = 0;
    bool arrived = false;  // else a task is done
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };

  void push(Event event) {
    event.number = next_number_++;
    events_.push(event);
  }

  void take(const Event& event) {
    Stage& stage = stages_[event.stage];
    if (event.arrived) {
      ++stage.arrivals[event.segment][event.microbatch];
      return;
    }
    stage.busy = false;
    ++stage.done[event.segment];
    for (Link& link : links_) {
      if (link.from != event.stage || link.segment != event.segment) continue;
      link.free_at = std::max(link.free_at, now_) + link.busy_seconds;
      push({link.free_at + link.latency, 0, link.to, link.segment, event.microbatch, true});
    }
  }

  void start(uint32_t s, Timeline& timeline) {
    Stage& stage = stages_[s];
    if (stage.busy) return;
    const plan::StagePlan& planned = plan_.stages[s];
    const auto task = plan::next_task(
        stage.done,
        [&](uint32_t segment, uint32_t microbatch) {
          return stage.arrivals[segment][microbatch] == stage.expected[segment];
        },
        microbatches_, planned.microbatches_in_flight);
    if (!task) return;
    stage.busy = true;
    const bool backward = task->segment == kBackward;
    const double end = now_ + seconds(backward ? planned.backward : planned.forward);
    if (end > now_) timeline.stages[s].push_back({now_, end, task->microbatch, backward});
    push({end, 0, s, task->segment, task->microbatch, false});
  }

  const plan::Plan& plan_;
  uint32_t microbatches_;
  std::vector<Stage> stages_;
  std::vector<Link> links_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  double now_ = 0;
  uint64_t next_number_ = 0;
};

}  // namespace

Timeline make_timeline(const plan::Plan& plan, const plan::ClusterView& cluster, uint32_t microbatches,
                       size_t tasks_max) {
  const size_t shown = tasks_max / std::max<size_t>(1, kSegments * plan.stages.size());
  return Play(plan, cluster, static_cast<uint32_t>(std::clamp<size_t>(shown, 1, std::max(1u, microbatches))))
      .run();
}

}  // namespace weft::cli
