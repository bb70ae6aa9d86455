#include "plan/predict.h"

#include <algorithm>
#include <cmath>
#include <queue>

#include "base/check.h"

namespace weft::plan {
namespace {

constexpr uint32_t kStepsSimulated = 3;
constexpr uint32_t kMicrobatchesSimulated = 192;

Duration times(Duration once, double count) {
  return Duration(static_cast<int64_t>(std::min(static_cast<double>(once.count()) * count, 9e18)));
}

struct Event {
  int64_t time = 0;  // ns
  uint64_t number = 0;
  enum class Kind : uint8_t { TaskDone, Updated, Arrived } kind = Kind::TaskDone;
  uint32_t stage = 0, segment = 0, microbatch = 0, step = 0;
  bool operator>(const Event& other) const {
    return time != other.time ? time > other.time : number > other.number;
  }
};

class Simulation {
 public:
  Simulation(const PredictRequest& request, uint32_t microbatches)
      : request_(request),
        pipeline_(*request.pipeline),
        microbatches_(microbatches),
        count_(static_cast<uint32_t>(pipeline_.stages.size())),
        stages_(count_),
        link_free_(size_t{count_} * count_, 0) {
    for (uint32_t s = 0; s < count_; ++s) {
      const size_t segments = pipeline_.stages[s].segments.size();
      stages_[s].done.assign(segments, 0);
      stages_[s].sends.resize(segments);
      stages_[s].expected.assign(segments, 0);
      stages_[s].arrived.assign(segments * microbatches_ * kStepsSimulated, 0);
    }
    for (uint32_t i = 0; i < pipeline_.messages.size(); ++i) {
      const Message& message = pipeline_.messages[i];
      stages_[message.from_stage].sends[message.from_segment].push_back(i);
      ++stages_[message.to_stage].expected[message.to_segment];
    }
  }

  // When the last stage has updated for the last time.
  int64_t run() {
    for (uint32_t s = 0; s < count_; ++s) advance(s);
    std::vector<uint32_t> touched;
    while (!events_.empty()) {
      now_ = events_.top().time;
      touched.clear();
      while (!events_.empty() && events_.top().time == now_) {
        const Event event = events_.top();
        events_.pop();
        take(event);
        touched.push_back(event.stage);
      }
      std::sort(touched.begin(), touched.end());
      touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
      for (const uint32_t stage : touched) advance(stage);
    }
    for (const Stage& stage : stages_)
      WEFT_CHECK_MSG(stage.step == kStepsSimulated, "the stages wait for each other");
    return now_;
  }

  TaskOrder order() {
    TaskOrder order;
    for (Stage& stage : stages_) order.push_back(std::move(stage.order));
    return order;
  }

 private:
  struct Stage {
    std::vector<uint32_t> done;                // by segment, in this step
    std::vector<std::vector<uint32_t>> sends;  // by segment: messages
    std::vector<uint32_t> expected, arrived;   // messages: by segment; by step, segment, microbatch
    uint32_t step = 0;
    bool busy = false;
    std::vector<TaskChoice> order;
  };

  size_t slot(uint32_t stage, uint32_t step, uint32_t segment, uint32_t microbatch) const {
    return (size_t{step} * pipeline_.stages[stage].segments.size() + segment) * microbatches_ + microbatch;
  }
  void push(int64_t time, Event event) {
    event.time = time;
    event.number = next_number_++;
    events_.push(event);
  }

  void take(const Event& event) {
    Stage& stage = stages_[event.stage];
    switch (event.kind) {
      case Event::Kind::Arrived:
        ++stage.arrived[slot(event.stage, event.step, event.segment, event.microbatch)];
        break;
      case Event::Kind::Updated:
        stage.busy = false;
        ++stage.step;
        std::fill(stage.done.begin(), stage.done.end(), 0u);
        break;
      case Event::Kind::TaskDone:
        stage.busy = false;
        ++stage.done[event.segment];
        send(event);
    }
  }

  void send(const Event& event) {
    for (const uint32_t i : stages_[event.stage].sends[event.segment]) {
      const Message& message = pipeline_.messages[i];
      const size_t link = size_t{message.from_stage} * count_ + message.to_stage;
      link_free_[link] =
          std::max(link_free_[link], now_) + transfer_time(message.bytes, request_.links[link]);
      push(link_free_[link] + request_.links[link].latency.count(), {.kind = Event::Kind::Arrived,
                                                                     .stage = message.to_stage,
                                                                     .segment = message.to_segment,
                                                                     .microbatch = event.microbatch,
                                                                     .step = event.step});
    }
  }

  void advance(uint32_t s) {
    Stage& stage = stages_[s];
    if (stage.busy || stage.step == kStepsSimulated) return;
    const StageWork& work = pipeline_.stages[s];
    if (stage.done.empty() || stage.done.back() == microbatches_) {
      stage.busy = true;
      push(now_ + work.update.count(), {.kind = Event::Kind::Updated, .stage = s});
      return;
    }
    const std::optional<TaskChoice> task = choose(s);
    if (!task) return;
    stage.busy = true;
    stage.order.push_back(*task);
    push(now_ + work.segments[task->segment].compute.count(), {.kind = Event::Kind::TaskDone,
                                                               .stage = s,
                                                               .segment = task->segment,
                                                               .microbatch = task->microbatch,
                                                               .step = stage.step});
  }

  std::optional<TaskChoice> choose(uint32_t s) const {
    const Stage& stage = stages_[s];
    const auto here = [&](uint32_t segment, uint32_t microbatch) {
      return stage.arrived[slot(s, stage.step, segment, microbatch)] == stage.expected[segment];
    };
    if (!request_.order) return next_task(stage.done, here, microbatches_, request_.in_flight[s]);
    const TaskChoice next = (*request_.order)[s][stage.order.size()];
    return here(next.segment, next.microbatch) ? std::optional(next) : std::nullopt;
  }

 public:
  static int64_t transfer_time(Bytes bytes, const LinkView& link) {
    const double seconds = static_cast<double>(bytes.value) / link.bytes_per_second;
    return static_cast<int64_t>(std::ceil(std::min(seconds, 1e6) * 1e9));
  }

 private:
  const PredictRequest& request_;
  const Pipeline& pipeline_;
  uint32_t microbatches_;
  uint32_t count_;
  std::vector<Stage> stages_;
  std::vector<int64_t> link_free_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t now_ = 0;
  uint64_t next_number_ = 0;
};

}  // namespace

Prediction predict(const PredictRequest& request) {
  const auto count = static_cast<uint32_t>(request.pipeline->stages.size());
  WEFT_CHECK(request.links.size() == count * count && request.in_flight.size() == count);
  Prediction result;
  const uint32_t simulated = std::min(request.microbatches, kMicrobatchesSimulated);
  Simulation simulation(request, simulated);
  int64_t total = simulation.run();
  if (simulated < request.microbatches) {
    const uint32_t fewer = simulated * 2 / 3;
    const int64_t shorter = Simulation(request, fewer).run();
    total += times(Duration(total - shorter),
                   static_cast<double>(request.microbatches - simulated) / (simulated - fewer))
                 .count();
  } else {
    result.order = simulation.order();
  }
  result.step = Duration((total + kStepsSimulated - 1) / kStepsSimulated);
  for (const StageWork& stage : request.pipeline->stages) {
    Duration busy = stage.update;
    for (const Segment& segment : stage.segments) busy += times(segment.compute, request.microbatches);
    result.busy.push_back(busy);
  }
  result.sending.resize(count * count);
  for (const Message& message : request.pipeline->messages) {
    const size_t link = message.from_stage * count + message.to_stage;
    result.sending[link] +=
        times(Duration(Simulation::transfer_time(message.bytes, request.links[link])), request.microbatches);
  }
  return result;
}

}  // namespace weft::plan
