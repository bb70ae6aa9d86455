#include "plan/predict.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <queue>

#include "base/check.h"

namespace weft::plan {
namespace {

constexpr uint32_t kStepsSimulated = 3;
constexpr uint32_t kMicrobatchesSimulated = 192;

Duration times(Duration once, double count) {
  return Duration(static_cast<int64_t>(std::min(static_cast<double>(once.count()) * count, 9e18)));
}

// How long `bytes` take; nothing takes for ever.
int64_t transfer_time(Bytes bytes, double bytes_per_second) {
  const double seconds = static_cast<double>(bytes.value) / bytes_per_second;
  return static_cast<int64_t>(std::ceil(std::min(seconds, 1e6) * 1e9));
}

struct Event {
  int64_t time = 0;  // ns
  uint64_t number = 0;
  enum class Kind : uint8_t { TaskDone, Updated, CameAcross, Arrived } kind = Kind::TaskDone;
  uint32_t stage = 0, segment = 0, microbatch = 0, step = 0;
  uint32_t message = 0;  // of the pipeline's
  int64_t begun = 0;     // CameAcross: when its first byte came, if nothing held it up
  bool operator>(const Event& other) const {
    return time != other.time ? time > other.time : number > other.number;
  }
};

// What the messages of a pipeline take on their ways.
struct Way {
  int64_t uplink = 0, path = 0, downlink = 0, latency = 0;  // ns
  uint32_t pair = 0;                                        // by ends
};
std::vector<Way> ways_of(const PredictRequest& request) {
  const auto& devices = request.cluster->devices();
  std::vector<Way> ways;
  const Message* before = nullptr;
  for (const Message& message : request.pipeline->messages) {
    const uint32_t from = request.devices[message.from_stage], to = request.devices[message.to_stage];
    const LinkView& path = request.cluster->path(from, to);
    const bool same_pair =
        before && before->from_stage == message.from_stage && before->to_stage == message.to_stage;
    ways.push_back({transfer_time(message.bytes, devices[from].uplink),
                    transfer_time(message.bytes, path.bytes_per_second),
                    transfer_time(message.bytes, devices[to].downlink), path.latency.count(),
                    ways.empty() ? 0 : ways.back().pair + (same_pair ? 0 : 1)});
    before = &message;
  }
  return ways;
}

class Simulation {
 public:
  Simulation(const PredictRequest& request, const std::vector<Way>& ways, uint32_t microbatches)
      : request_(request),
        ways_(ways),
        pipeline_(*request.pipeline),
        microbatches_(microbatches),
        count_(static_cast<uint32_t>(pipeline_.stages.size())),
        stages_(count_),
        pair_free_(ways.empty() ? 0 : ways.back().pair + 1, 0) {
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

  PlayedOrder order() {
    PlayedOrder order;
    for (Stage& stage : stages_) {
      order.tasks.push_back(std::move(stage.order));
      order.arrivals.push_back(std::move(stage.arrivals));
    }
    return order;
  }
  Timeline timeline() {
    Timeline timeline{.stages = {}, .microbatches = microbatches_};
    for (Stage& stage : stages_) timeline.stages.push_back(std::move(stage.timeline));
    return timeline;
  }

 private:
  struct Stage {
    std::vector<uint32_t> done;                // by segment, in this step
    std::vector<std::vector<uint32_t>> sends;  // by segment: messages
    std::vector<uint32_t> expected, arrived;   // messages: by segment; by step, segment, microbatch
    uint32_t step = 0;
    bool busy = false;
    int64_t uplink_free = 0, downlink_free = 0;
    std::deque<Event> waiting;  // with a fixed order: what came across before its turn
    std::vector<TaskChoice> order;
    std::vector<uint32_t> arrivals;
    std::vector<TimelineTask> timeline;
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
      case Event::Kind::CameAcross:
        request_.order ? take_in_order(event) : take_in(event);
        break;
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
        for (const uint32_t i : stage.sends[event.segment]) send(i, event);
    }
  }

  void send(uint32_t i, const Event& task) {
    const Message& message = pipeline_.messages[i];
    const Way& way = ways_[i];
    int64_t& uplink = stages_[message.from_stage].uplink_free;
    int64_t& pair = pair_free_[way.pair];
    const int64_t onto_line = std::max(uplink, now_);
    uplink = onto_line + way.uplink;
    const int64_t onto_path = std::max(pair, onto_line);
    pair = std::max(onto_path + way.path, uplink);
    push(pair + way.latency, {.kind = Event::Kind::CameAcross,
                              .stage = message.to_stage,
                              .segment = message.to_segment,
                              .microbatch = task.microbatch,
                              .step = task.step,
                              .message = i,
                              .begun = onto_path + way.latency});
  }

  // The last byte stands at the downlink.
  void take_in(Event event) {
    Stage& stage = stages_[event.stage];
    stage.arrivals.push_back(event.message);
    stage.downlink_free =
        std::max(now_, std::max(stage.downlink_free, event.begun) + ways_[event.message].downlink);
    event.kind = Event::Kind::Arrived;
    push(stage.downlink_free, event);
  }
  void take_in_order(const Event& event) {
    Stage& stage = stages_[event.stage];
    const auto& order = request_.order->arrivals[event.stage];
    stage.waiting.push_back(event);
    for (auto next = stage.waiting.begin(); next != stage.waiting.end();) {
      if (next->message != order[stage.arrivals.size()]) {
        ++next;
        continue;
      }
      const Event in_turn = *next;
      stage.waiting.erase(next);
      take_in(in_turn);
      next = stage.waiting.begin();
    }
  }

  void advance(uint32_t s) {
    Stage& stage = stages_[s];
    if (stage.busy || stage.step == kStepsSimulated) return;
    const StageWork& work = pipeline_.stages[s];
    if (stage.done.empty() || stage.done.back() == microbatches_) {
      stage.busy = true;
      update(s);
      return;
    }
    const std::optional<TaskChoice> task = choose(s);
    if (!task) return;
    stage.busy = true;
    stage.order.push_back(*task);
    const Segment& segment = work.segments[task->segment];
    const int64_t end = now_ + segment.compute.count();
    if (stage.step == 0 && end > now_)
      stage.timeline.push_back({Duration(now_), Duration(end), task->microbatch, segment.backward});
    push(end, {.kind = Event::Kind::TaskDone,
               .stage = s,
               .segment = task->segment,
               .microbatch = task->microbatch,
               .step = stage.step});
  }

  // With a norm, all at once when the last one is there: what it takes every stage to go on.
  void update(uint32_t s) {
    const auto updated_by = [&](uint32_t stage, int64_t from) {
      push(from + pipeline_.stages[stage].update.count(), {.kind = Event::Kind::Updated, .stage = stage});
    };
    if (!request_.norm_round_trip) return updated_by(s, now_);
    if (++ready_to_update_ < count_) return;
    ready_to_update_ = 0;
    for (uint32_t stage = 0; stage < count_; ++stage)
      updated_by(stage, now_ + request_.norm_round_trip->count());
  }

  std::optional<TaskChoice> choose(uint32_t s) const {
    const Stage& stage = stages_[s];
    const auto here = [&](uint32_t segment, uint32_t microbatch) {
      return stage.arrived[slot(s, stage.step, segment, microbatch)] == stage.expected[segment];
    };
    if (!request_.order) return next_task(stage.done, here, microbatches_, request_.in_flight[s]);
    const TaskChoice next = request_.order->tasks[s][stage.order.size()];
    return here(next.segment, next.microbatch) ? std::optional(next) : std::nullopt;
  }

  const PredictRequest& request_;
  const std::vector<Way>& ways_;
  const Pipeline& pipeline_;
  uint32_t microbatches_;
  uint32_t count_;
  std::vector<Stage> stages_;
  std::vector<int64_t> pair_free_;
  uint32_t ready_to_update_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t now_ = 0;
  uint64_t next_number_ = 0;
};

// How long lines and links are busy in a step.
void add_up(const PredictRequest& request, const std::vector<Way>& ways, Prediction& result) {
  const auto count = request.pipeline->stages.size();
  result.uplink.resize(count);
  result.downlink.resize(count);
  for (size_t i = 0; i < ways.size(); ++i) {
    const Message& message = request.pipeline->messages[i];
    const auto each_step = [&](int64_t once) { return times(Duration(once), request.microbatches); };
    if (i == 0 || ways[i].pair != ways[i - 1].pair)
      result.sending.push_back({message.from_stage, message.to_stage, {}});
    result.sending.back().busy += each_step(ways[i].path);
    result.uplink[message.from_stage] += each_step(ways[i].uplink);
    result.downlink[message.to_stage] += each_step(ways[i].downlink);
  }
}

}  // namespace

Prediction predict(const PredictRequest& request) {
  const auto count = static_cast<uint32_t>(request.pipeline->stages.size());
  WEFT_CHECK(request.devices.size() == count && request.in_flight.size() == count);
  Prediction result;
  const std::vector<Way> ways = ways_of(request);
  const uint32_t simulated = std::min(request.microbatches, kMicrobatchesSimulated);
  Simulation simulation(request, ways, simulated);
  int64_t total = simulation.run();
  result.timeline = simulation.timeline();
  if (simulated < request.microbatches) {
    const uint32_t fewer = simulated * 2 / 3;
    const int64_t shorter = Simulation(request, ways, fewer).run();
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
  add_up(request, ways, result);
  return result;
}

}  // namespace weft::plan
