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
constexpr uint32_t kPrefetched = 4;  // microbatches of data beyond those in flight, as peers ask for them

using Mark = PathRecorder::Mark;
using Kind = CriticalPart::Kind;

Duration times(Duration once, double count) {
  return Duration(static_cast<int64_t>(std::min(static_cast<double>(once.count()) * count, 9e18)));
}

// How long `bytes` take; nothing takes for ever.
int64_t transfer_time(Bytes bytes, double bytes_per_second) {
  const double seconds = static_cast<double>(bytes.value) / bytes_per_second;
  return static_cast<int64_t>(std::ceil(std::min(seconds, 1e6) * 1e9));
}

// When something ended, and what.
struct End {
  int64_t time = 0;  // ns
  Mark mark = PathRecorder::kBegin;
};
End later(End a, End b) { return b.time > a.time ? b : a; }

struct Event {
  int64_t time = 0;  // ns
  uint64_t number = 0;
  enum class Kind : uint8_t { TaskDone, Updated, CameAcross, Arrived } kind = Kind::TaskDone;
  uint32_t stage = 0, segment = 0, microbatch = 0, step = 0;
  uint32_t message = 0;              // of the pipeline's; beyond them, the data of a stage
  Mark mark = PathRecorder::kBegin;  // what ended then
  End begun{};                       // CameAcross: when its first byte came, if nothing held it up
  bool operator>(const Event& other) const {
    return time != other.time ? time > other.time : number > other.number;
  }
};

// What the messages of a pipeline take on their ways, then the data of each stage.
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
    const Bytes bytes = message.bytes + message.framing;
    const double copying = request.copying.empty() ? 0 : request.copying[message.from_stage];
    const bool same_pair =
        before && before->from_stage == message.from_stage && before->to_stage == message.to_stage;
    ways.push_back({transfer_time(bytes, devices[from].uplink - copying),
                    transfer_time(bytes, path.bytes_per_second), transfer_time(bytes, devices[to].downlink),
                    path.latency.count(), ways.empty() ? 0 : ways.back().pair + (same_pair ? 0 : 1)});
    before = &message;
  }
  for (uint32_t stage = 0; stage < request.devices.size(); ++stage)
    ways.push_back({.downlink = transfer_time(request.pipeline->stages[stage].data,
                                              devices[request.devices[stage]].downlink)});
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
        pairs_(pipeline_.messages.empty() ? 0 : ways[pipeline_.messages.size() - 1].pair + 1) {
    for (uint32_t s = 0; s < count_; ++s) {
      const size_t segments = pipeline_.stages[s].segments.size();
      stages_[s].done.assign(segments, 0);
      stages_[s].sends.resize(segments);
      stages_[s].expected.assign(segments, 0);
      stages_[s].arrived.assign(segments * microbatches_ * kStepsSimulated, 0);
      if (request.records_path)
        stages_[s].arrived_mark.assign(stages_[s].arrived.size(), PathRecorder::kBegin);
    }
    for (uint32_t i = 0; i < pipeline_.messages.size(); ++i) {
      const Message& message = pipeline_.messages[i];
      stages_[message.from_stage].sends[message.from_segment].push_back(i);
      ++stages_[message.to_stage].expected[message.to_segment];
    }
    for (uint32_t s = 0; s < count_; ++s)
      if (reads_data(s)) ++stages_[s].expected[pipeline_.stages[s].data_segment];
  }

  // When the last stage has updated for the last time.
  int64_t run() {
    for (uint32_t s = 0; s < count_; ++s) ask_for_data(s);
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
    Timeline timeline{.stages = {}, .held = {}, .critical = {}, .microbatches = microbatches_};
    for (Stage& stage : stages_) {
      timeline.stages.push_back(std::move(stage.timeline));
      timeline.held.push_back(std::move(stage.held));
    }
    return timeline;
  }
  // REQUIRES: it was recorded, and this ran. All simulated steps.
  std::vector<CriticalPart> path() const { return recorder_.path_to(last_.mark); }

 private:
  struct Stage {
    std::vector<uint32_t> done;                // by segment, in this step
    std::vector<std::vector<uint32_t>> sends;  // by segment: messages
    std::vector<uint32_t> expected, arrived;   // messages: by segment; by step, segment, microbatch
    uint32_t step = 0;
    bool busy = false;
    uint64_t data_asked = 0;         // microbatches, over all steps
    End uplink, downlink;            // free from then on
    End task;                        // the one before, or the update
    std::vector<Mark> arrived_mark;  // of the last message: by step, segment, microbatch
    std::deque<Event> waiting;       // with a fixed order: what came across before its turn
    std::vector<TaskChoice> order;
    std::vector<uint32_t> arrivals;
    std::vector<TimelineTask> timeline;
    std::vector<HeldMicrobatches> held;
  };

  size_t slot(uint32_t stage, uint32_t step, uint32_t segment, uint32_t microbatch) const {
    return (size_t{step} * pipeline_.stages[stage].segments.size() + segment) * microbatches_ + microbatch;
  }
  bool reads_data(uint32_t stage) const { return pipeline_.stages[stage].data.value > 0; }
  End after(End begin, int64_t takes, CriticalPart what) {
    const int64_t end = begin.time + takes;
    if (!request_.records_path) return {end, PathRecorder::kBegin};
    what.begin = Duration(begin.time);
    what.end = Duration(end);
    return {end, recorder_.add(what, begin.mark)};
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
        request_.order ? take_in_order(event) : take_in(event, {now_, event.mark});
        break;
      case Event::Kind::Arrived: {
        const size_t at = slot(event.stage, event.step, event.segment, event.microbatch);
        ++stage.arrived[at];
        if (request_.records_path) stage.arrived_mark[at] = event.mark;
        break;
      }
      case Event::Kind::Updated:
        stage.busy = false;
        stage.task = last_ = {now_, event.mark};
        ++stage.step;
        std::fill(stage.done.begin(), stage.done.end(), 0u);
        break;
      case Event::Kind::TaskDone:
        stage.busy = false;
        stage.task = {now_, event.mark};
        ++stage.done[event.segment];
        for (const uint32_t i : stage.sends[event.segment]) send(i, event);
        if (event.segment + 1 == stage.done.size()) {
          hold(stage, -1);
          ask_for_data(event.stage);
        }
    }
  }

  void send(uint32_t i, const Event& task) {
    const Message& message = pipeline_.messages[i];
    const Way& way = ways_[i];
    CriticalPart on_line{Kind::Uplink, message.from_stage, message.from_stage, task.microbatch, task.step};
    CriticalPart between = on_line;
    between.kind = Kind::Link;
    between.to_stage = message.to_stage;
    End& uplink = stages_[message.from_stage].uplink;
    End& pair = pairs_[way.pair];
    const End onto_line = later({now_, task.mark}, uplink);
    uplink = after(onto_line, way.uplink, on_line);
    const End onto_path = later(onto_line, pair);
    pair = later(after(onto_path, way.path, between), uplink);
    const End came = after(pair, way.latency, between);
    push(came.time, {.kind = Event::Kind::CameAcross,
                     .stage = message.to_stage,
                     .segment = message.to_segment,
                     .microbatch = task.microbatch,
                     .step = task.step,
                     .message = i,
                     .mark = came.mark,
                     .begun = after(onto_path, way.latency, between)});
  }

  // As many microbatches of data as a peer asks for: they come over its downlink alone.
  void ask_for_data(uint32_t s) {
    if (!reads_data(s)) return;
    Stage& stage = stages_[s];
    const uint64_t finished = uint64_t{stage.step} * microbatches_ + stage.done.back();
    const uint64_t until =
        std::min(finished + request_.in_flight[s] + kPrefetched, uint64_t{microbatches_} * kStepsSimulated);
    for (; stage.data_asked < until; ++stage.data_asked)
      push(now_, {.kind = Event::Kind::CameAcross,
                  .stage = s,
                  .segment = pipeline_.stages[s].data_segment,
                  .microbatch = static_cast<uint32_t>(stage.data_asked % microbatches_),
                  .step = static_cast<uint32_t>(stage.data_asked / microbatches_),
                  .message = static_cast<uint32_t>(pipeline_.messages.size()) + s,
                  .mark = stage.task.mark,
                  .begun = stage.task});
  }

  // The last byte stands at the downlink.
  void take_in(Event event, End came) {
    Stage& stage = stages_[event.stage];
    stage.arrivals.push_back(event.message);
    const Kind kind = event.message < pipeline_.messages.size() ? Kind::Downlink : Kind::Data;
    stage.downlink = later(came, after(later(event.begun, stage.downlink), ways_[event.message].downlink,
                                       {kind, event.stage, event.stage, event.microbatch, event.step}));
    event.kind = Event::Kind::Arrived;
    event.mark = stage.downlink.mark;
    push(stage.downlink.time, event);
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
      take_in(in_turn, {now_, event.mark});
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
    if (task->segment == 0) hold(stage, 1);
    const Segment& segment = work.segments[task->segment];
    const End end = after(let_begin(s, *task), segment.compute.count(),
                          {Kind::Compute, s, s, task->microbatch, stage.step});
    if (stage.step == 0 && end.time > now_)
      stage.timeline.push_back({Duration(now_), Duration(end.time), task->microbatch, segment.backward});
    push(end.time, {.kind = Event::Kind::TaskDone,
                    .stage = s,
                    .segment = task->segment,
                    .microbatch = task->microbatch,
                    .step = stage.step,
                    .mark = end.mark});
  }
  // What ended now: the stage's task before, or else the last message that this one waited for.
  End let_begin(uint32_t s, const TaskChoice& task) const {
    const Stage& stage = stages_[s];
    if (stage.task.time == now_ || !request_.records_path) return {now_, stage.task.mark};
    return {now_, stage.arrived_mark[slot(s, stage.step, task.segment, task.microbatch)]};
  }
  void hold(Stage& stage, int more) {
    if (stage.step > 0) return;
    const uint32_t count = (stage.held.empty() ? 0 : stage.held.back().count) + static_cast<uint32_t>(more);
    if (stage.held.empty() || stage.held.back().at != Duration(now_))
      stage.held.push_back({Duration(now_), count});
    else
      stage.held.back().count = count;
  }

  // With a norm, all at once when the last one is there: what it takes every stage to go on.
  void update(uint32_t s) {
    const auto updated_by = [&](uint32_t stage, End from) {
      const End end = after(from, pipeline_.stages[stage].update.count(),
                            {Kind::Update, stage, stage, 0, stages_[stage].step});
      push(end.time, {.kind = Event::Kind::Updated, .stage = stage, .mark = end.mark});
    };
    if (!request_.norm_round_trip) return updated_by(s, stages_[s].task);
    if (++ready_to_update_ < count_) return;
    ready_to_update_ = 0;
    const End agreed =
        after(stages_[s].task, request_.norm_round_trip->count(), {Kind::Norm, s, s, 0, stages_[s].step});
    for (uint32_t stage = 0; stage < count_; ++stage) updated_by(stage, agreed);
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
  std::vector<End> pairs_;  // by ends: what lies between is free from then on
  uint32_t ready_to_update_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  PathRecorder recorder_;
  End last_;  // update
  int64_t now_ = 0;
  uint64_t next_number_ = 0;
};

// How long lines and links are busy in a step.
void add_up(const PredictRequest& request, const std::vector<Way>& ways, Prediction& result) {
  const auto count = request.pipeline->stages.size();
  result.uplink.resize(count);
  result.downlink.resize(count);
  const auto each_step = [&](int64_t once) { return times(Duration(once), request.microbatches); };
  const auto& messages = request.pipeline->messages;
  for (size_t stage = 0; stage < count; ++stage)
    result.downlink[stage] += each_step(ways[messages.size() + stage].downlink);
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    if (i == 0 || ways[i].pair != ways[i - 1].pair)
      result.sending.push_back({message.from_stage, message.to_stage, {}});
    result.sending.back().busy += each_step(ways[i].path);
    result.uplink[message.from_stage] += each_step(ways[i].uplink);
    result.downlink[message.to_stage] += each_step(ways[i].downlink);
  }
}

void add_path(const std::vector<CriticalPart>& path, Prediction& result) {
  result.critical = shares_of(path, result.step);
  const auto later =
      std::find_if(path.rbegin(), path.rend(), [](const auto& part) { return part.step == 0; });
  result.timeline.critical.assign(path.begin(), later.base());
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
  if (request.records_path) add_path(simulation.path(), result);
  for (const StageWork& stage : request.pipeline->stages)
    result.busy.push_back(stage.busy(request.microbatches));
  add_up(request, ways, result);
  return result;
}

}  // namespace weft::plan
