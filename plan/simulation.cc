#include "plan/simulation.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace weft::plan {
namespace {

using Kind = CriticalPart::Kind;

constexpr uint32_t kPrefetched = 4;  // microbatches of data beyond those in flight, as peers ask for them
constexpr int64_t kNotKnown = -1;
constexpr double kCountable = 1e18;  // ns that are added up without a thought

// How long `bytes` take; nothing takes for ever.
int64_t transfer_time(Bytes bytes, double bytes_per_second) {
  const double seconds = static_cast<double>(bytes.value) / bytes_per_second;
  return static_cast<int64_t>(std::ceil(std::min(seconds, 1e6) * 1e9));
}

}  // namespace

std::vector<PathTimes> path_times(const PredictRequest& request) {
  const auto& devices = request.cluster->devices();
  std::vector<PathTimes> paths;
  const Message* before = nullptr;
  for (const Message& message : request.pipeline->messages) {
    const uint32_t from = request.devices[message.from_stage], to = request.devices[message.to_stage];
    const LinkView& path = request.cluster->path(from, to);
    const Bytes bytes = message.bytes + message.framing;
    const double copying = request.copying.empty() ? 0 : request.copying[message.from_stage];
    const bool same_pair =
        before && before->from_stage == message.from_stage && before->to_stage == message.to_stage;
    paths.push_back({transfer_time(bytes, devices[from].uplink - copying),
                     transfer_time(bytes, path.bytes_per_second), transfer_time(bytes, devices[to].downlink),
                     path.latency.count(), paths.empty() ? 0 : paths.back().pair + (same_pair ? 0 : 1)});
    before = &message;
  }
  for (uint32_t stage = 0; stage < request.devices.size(); ++stage)
    paths.push_back({.downlink = transfer_time(request.pipeline->stages[stage].data,
                                               devices[request.devices[stage]].downlink)});
  return paths;
}

Simulation::Simulation(const PredictRequest& request, const std::vector<PathTimes>& paths,
                       uint32_t microbatches)
    : request_(request),
      records_(!request.step_only || request.order || request.records_path),
      paths_(paths),
      pipeline_(*request.pipeline),
      microbatches_(microbatches),
      count_(static_cast<uint32_t>(pipeline_.stages.size())),
      stages_(count_),
      pairs_(pipeline_.messages.empty() ? 0 : paths[pipeline_.messages.size() - 1].pair + 1) {
  size_t slots = 0;
  for (uint32_t s = 0; s < count_; ++s) {
    const size_t segments = pipeline_.stages[s].segments.size();
    stages_[s].done.assign(segments, 0);
    stages_[s].sends.resize(segments);
    stages_[s].expected.assign(segments, 0);
    stages_[s].first_slot = slots;
    slots += segments * microbatches_ * kStepsSimulated;
  }
  arrived_.assign(slots, 0);
  if (request.records_path) arrived_mark_.assign(slots, PathRecorder::kBegin);
  for (uint32_t i = 0; i < pipeline_.messages.size(); ++i) {
    const Message& message = pipeline_.messages[i];
    stages_[message.from_stage].sends[message.from_segment].push_back(i);
    ++stages_[message.to_stage].expected[message.to_segment];
  }
  for (uint32_t s = 0; s < count_; ++s)
    if (reads_data(s)) ++stages_[s].expected[pipeline_.stages[s].data_segment];
  if (!records_)
    for (uint32_t s = 0; s < count_; ++s)
      stages_[s].takes_at_once = paths_[paths.size() - count_ + s].downlink == 0;
  for (uint32_t i = 0; i < pipeline_.messages.size(); ++i)
    if (paths_[i].downlink > 0) stages_[pipeline_.messages[i].to_stage].takes_at_once = false;
}

std::optional<int64_t> Simulation::run(int64_t give_up_at) {
  if (give_up_at != kNever) count_work(give_up_at);
  if (is_late_) return std::nullopt;
  for (uint32_t s = 0; s < count_; ++s) ask_for_data(s);
  for (uint32_t s = 0; s < count_; ++s) advance(s);
  while (!events_.empty() && !is_late_) play_next();
  if (is_late_) return std::nullopt;
  for (const Stage& stage : stages_)
    WEFT_CHECK_MSG(stage.step == kStepsSimulated, "the stages wait for each other");
  return now_;
}

// All that happens at one time, and then what the stages begin because of it, in their order.
void Simulation::play_next() {
  now_ = events_.next_time();
  touched_.clear();
  while (events_.has_at(now_)) {
    const Event event = events_.take();
    take(event);
    if (event.kind != Event::Kind::CameAcross) touched_.push_back(event.stage);
  }
  if (touched_.size() > 1) {
    std::sort(touched_.begin(), touched_.end());
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
  }
  for (const uint32_t stage : touched_) advance(stage);
}

PlayedOrder Simulation::order() {
  PlayedOrder order;
  for (Stage& stage : stages_) {
    order.tasks.push_back(std::move(stage.order));
    order.arrivals.push_back(std::move(stage.arrivals));
  }
  return order;
}

Timeline Simulation::timeline() {
  Timeline timeline{.stages = {}, .held = {}, .critical = {}, .microbatches = microbatches_};
  for (Stage& stage : stages_) {
    timeline.stages.push_back(std::move(stage.timeline));
    timeline.held.push_back(std::move(stage.held));
  }
  return timeline;
}

End Simulation::after(End begin, int64_t takes, CriticalPart what) {
  const int64_t end = begin.time + takes;
  if (!request_.records_path) return {end, PathRecorder::kBegin};
  what.begin = Duration(begin.time);
  what.end = Duration(end);
  return {end, recorder_.add(what, begin.mark)};
}

// Of all that a stage computes and a line or link carries: how much is left. What does one thing after the
// other is not done before that has passed.
void Simulation::count_work(int64_t give_up_at) {
  work_left_.assign(count_, 0);
  uplink_left_.assign(count_, 0);
  downlink_left_.assign(count_, 0);
  pair_left_.assign(pairs_.size(), 0);
  const double rounds = static_cast<double>(microbatches_) * kStepsSimulated;
  double most = 0;
  const auto add = [&](int64_t& to, int64_t once, double times) {
    most = std::max(most, static_cast<double>(to) + static_cast<double>(once) * times);
    if (most < kCountable) to += once * static_cast<int64_t>(times);
  };
  for (uint32_t s = 0; s < count_; ++s) {
    for (const Segment& segment : pipeline_.stages[s].segments)
      add(work_left_[s], segment.compute.count(), rounds);
    add(work_left_[s], pipeline_.stages[s].update.count(), kStepsSimulated);
    if (reads_data(s)) add(downlink_left_[s], paths_[pipeline_.messages.size() + s].downlink, rounds);
  }
  for (size_t i = 0; i < pipeline_.messages.size(); ++i) {
    add(uplink_left_[pipeline_.messages[i].from_stage], paths_[i].uplink, rounds);
    add(downlink_left_[pipeline_.messages[i].to_stage], paths_[i].downlink, rounds);
    add(pair_left_[paths_[i].pair], paths_[i].path, rounds);
  }
  if (most >= kCountable) return;
  give_up_at_ = give_up_at;
  is_late_ = most >= static_cast<double>(give_up_at);
}

// Something that was free at `begin` has been given `takes` of what is left to it.
void Simulation::spend(std::vector<int64_t>& left, size_t of, int64_t begin, int64_t takes) {
  if (give_up_at_ == kNever) return;
  if (begin + left[of] >= give_up_at_) is_late_ = true;
  left[of] -= takes;
}

void Simulation::take(const Event& event) {
  Stage& stage = stages_[event.stage];
  switch (event.kind) {
    case Event::Kind::CameAcross:
      request_.order ? take_in_order(event) : take_in(event, {now_, event.mark});
      break;
    case Event::Kind::Arrived:
      arrive(event);
      break;
    case Event::Kind::Updated:
      stage.busy = false;
      stage.task = last_ = {now_, event.mark};
      ++stage.step;
      std::fill(stage.done.begin(), stage.done.end(), 0u);
      break;
    case Event::Kind::TaskDone:
      finish_task(event);
  }
}

void Simulation::finish_task(const Event& event) {
  Stage& stage = stages_[event.stage];
  stage.busy = false;
  stage.task = {now_, event.mark};
  ++stage.done[event.segment];
  for (const uint32_t i : stage.sends[event.segment]) send(i, event);
  if (event.segment + 1 < stage.done.size()) return;
  hold(stage, -1);
  ask_for_data(event.stage);
}

void Simulation::send(uint32_t i, const Event& task) {
  const Message& message = pipeline_.messages[i];
  const PathTimes& path = paths_[i];
  CriticalPart on_line{Kind::Uplink, message.from_stage, message.from_stage, task.microbatch, task.step};
  CriticalPart between = on_line;
  between.kind = Kind::Link;
  between.to_stage = message.to_stage;
  End& uplink = stages_[message.from_stage].uplink;
  End& pair = pairs_[path.pair];
  const End onto_line = later({now_, task.mark}, uplink);
  spend(uplink_left_, message.from_stage, onto_line.time, path.uplink);
  uplink = after(onto_line, path.uplink, on_line);
  const End onto_path = later(onto_line, pair);
  spend(pair_left_, path.pair, onto_path.time, path.path);
  pair = later(after(onto_path, path.path, between), uplink);
  const End came = after(pair, path.latency, between);
  const Event event{.kind = Event::Kind::CameAcross,
                    .stage = message.to_stage,
                    .segment = message.to_segment,
                    .microbatch = task.microbatch,
                    .step = task.step,
                    .message = i,
                    .mark = came.mark,
                    .begun = after(onto_path, path.latency, between)};
  if (stages_[message.to_stage].takes_at_once)
    arrive_at(came.time, event);
  else
    events_.add(came.time, event);
}

// As many microbatches of data as a peer asks for: they come over its downlink alone.
void Simulation::ask_for_data(uint32_t s) {
  if (!reads_data(s)) return;
  Stage& stage = stages_[s];
  const uint64_t finished = uint64_t{stage.step} * microbatches_ + stage.done.back();
  const uint64_t until =
      std::min(finished + request_.in_flight[s] + kPrefetched, uint64_t{microbatches_} * kStepsSimulated);
  for (; stage.data_asked < until; ++stage.data_asked) {
    const Event came{.kind = Event::Kind::CameAcross,
                     .stage = s,
                     .segment = pipeline_.stages[s].data_segment,
                     .microbatch = static_cast<uint32_t>(stage.data_asked % microbatches_),
                     .step = static_cast<uint32_t>(stage.data_asked / microbatches_),
                     .message = static_cast<uint32_t>(pipeline_.messages.size()) + s,
                     .mark = stage.task.mark,
                     .begun = stage.task};
    // Nothing else can come before it.
    if (!request_.order && !events_.has_at(now_))
      take_in(came, {now_, came.mark});
    else
      events_.add(now_, came);
  }
}

// The last byte stands at the downlink. It has arrived when it has passed that.
void Simulation::take_in(Event event, End came) {
  Stage& stage = stages_[event.stage];
  if (records_) stage.arrivals.push_back(event.message);
  const Kind kind = event.message < pipeline_.messages.size() ? Kind::Downlink : Kind::Data;
  const int64_t takes = paths_[event.message].downlink;
  const End onto_line = later(event.begun, stage.downlink);
  spend(downlink_left_, event.stage, onto_line.time, takes);
  stage.downlink =
      later(came, after(onto_line, takes, {kind, event.stage, event.stage, event.microbatch, event.step}));
  event.mark = stage.downlink.mark;
  arrive_at(stage.downlink.time, event);
}

// A stage that is busy until then need not be told apart.
void Simulation::arrive_at(int64_t time, Event event) {
  const Stage& stage = stages_[event.stage];
  event.kind = Event::Kind::Arrived;
  if (!request_.records_path && stage.busy && stage.busy_until >= time)
    arrive(event);
  else
    events_.add(time, event);
}

void Simulation::arrive(const Event& event) {
  const size_t at = slot(event.stage, event.step, event.segment, event.microbatch);
  ++arrived_[at];
  if (request_.records_path) arrived_mark_[at] = event.mark;
}

void Simulation::take_in_order(const Event& event) {
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

void Simulation::advance(uint32_t s) {
  Stage& stage = stages_[s];
  if (stage.busy || stage.step == kStepsSimulated) return;
  if (stage.done.empty() || stage.done.back() == microbatches_) {
    stage.busy = true;
    stage.busy_until = kNotKnown;
    update(s);
  } else if (const std::optional<TaskChoice> task = choose(s)) {
    begin_task(s, *task);
  }
}

void Simulation::begin_task(uint32_t s, const TaskChoice& task) {
  Stage& stage = stages_[s];
  const Segment& segment = pipeline_.stages[s].segments[task.segment];
  stage.busy = true;
  if (records_) stage.order.push_back(task);
  if (task.segment == 0) hold(stage, 1);
  spend(work_left_, s, now_, segment.compute.count());
  const End end =
      after(let_begin(s, task), segment.compute.count(), {Kind::Compute, s, s, task.microbatch, stage.step});
  stage.busy_until = end.time;
  if (records_ && stage.step == 0 && end.time > now_)
    stage.timeline.push_back({Duration(now_), Duration(end.time), task.microbatch, segment.backward});
  events_.add(end.time, {.kind = Event::Kind::TaskDone,
                         .stage = s,
                         .segment = task.segment,
                         .microbatch = task.microbatch,
                         .step = stage.step,
                         .mark = end.mark});
}

// What ended now: the stage's task before, or else the last message that this one waited for.
End Simulation::let_begin(uint32_t s, const TaskChoice& task) const {
  const Stage& stage = stages_[s];
  if (stage.task.time == now_ || !request_.records_path) return {now_, stage.task.mark};
  return {now_, arrived_mark_[slot(s, stage.step, task.segment, task.microbatch)]};
}

void Simulation::hold(Stage& stage, int more) {
  if (!records_ || stage.step > 0) return;
  const uint32_t count = (stage.held.empty() ? 0 : stage.held.back().count) + static_cast<uint32_t>(more);
  if (stage.held.empty() || stage.held.back().at != Duration(now_))
    stage.held.push_back({Duration(now_), count});
  else
    stage.held.back().count = count;
}

// With a norm, all at once when the last one is there: what it takes every stage to go on.
void Simulation::update(uint32_t s) {
  const auto updated_by = [&](uint32_t stage, End from) {
    const int64_t takes = pipeline_.stages[stage].update.count();
    spend(work_left_, stage, from.time, takes);
    const End end = after(from, takes, {Kind::Update, stage, stage, 0, stages_[stage].step});
    stages_[stage].busy_until = end.time;
    events_.add(end.time, {.kind = Event::Kind::Updated, .stage = stage, .mark = end.mark});
  };
  if (!request_.norm_round_trip) return updated_by(s, stages_[s].task);
  if (++ready_to_update_ < count_) return;
  ready_to_update_ = 0;
  const End agreed =
      after(stages_[s].task, request_.norm_round_trip->count(), {Kind::Norm, s, s, 0, stages_[s].step});
  for (uint32_t stage = 0; stage < count_; ++stage) updated_by(stage, agreed);
}

std::optional<TaskChoice> Simulation::choose(uint32_t s) const {
  const Stage& stage = stages_[s];
  const auto here = [&](uint32_t segment, uint32_t microbatch) {
    return arrived_[slot(s, stage.step, segment, microbatch)] == stage.expected[segment];
  };
  if (!request_.order) return choose_task(stage.done, here, microbatches_, request_.in_flight[s]);
  const TaskChoice next = request_.order->tasks[s][stage.order.size()];
  return here(next.segment, next.microbatch) ? std::optional(next) : std::nullopt;
}

}  // namespace weft::plan
