#include "bench/wide_area/player.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <utility>

#include "base/check.h"
#include "dag/op_table.h"
#include "dag/recompute.h"
#include "dag/split.h"
#include "net/model/link_model.h"
#include "net/model/shared_line.h"
#include "peer/machine/stage.h"
#include "plan/compression.h"
#include "plan/cost.h"
#include "proto/codec/codec.h"

namespace weft::bench {
namespace {

using peer::MicrobatchKey;
using peer::Task;
using peer::TaskKind;

constexpr uint64_t kGrantedAhead = 8;  // steps: broker/run/run.h
// What a frame and TLS add: net/frame.h, net/tls.h, RFC 8446.
constexpr size_t kFrameHeader = 5, kTlsRecord = 16 << 10, kTlsRecordOverhead = 22;

Duration duration(double seconds) { return Duration(static_cast<int64_t>(seconds * 1e9)); }

// ---- what a stage is given ----

using Assignments = std::vector<std::shared_ptr<proto::AssignStage>>;

// As broker/service/planner.cc makes them, without tensors and routes.
Result<Assignments> assignments_of(const Model& model, const plan::Plan& plan, uint32_t steps) {
  const auto count = static_cast<uint32_t>(plan.stages.size());
  const std::vector<uint32_t> class_of_stage(count, 0);
  const std::vector<const dag::Lowered*> classes = {model.lowered.get()};
  WEFT_TRY(dag::Split split,
           dag::split({&model.graph, plan.stage_of_op, classes, class_of_stage}, dag::op_table()));
  for (uint32_t s = 0; s < count; ++s)
    if (plan.stages[s].recomputes) dag::recompute(split, s, dag::op_table());
  Assignments assignments;
  for (uint32_t s = 0; s < count; ++s) {
    dag::StageGraph& piece = split.stages[s];
    proto::StageProgram program;
    program.segment_of_op = std::move(piece.segment_of_op);
    program.segment_count = piece.segment_count;
    std::set<uint32_t> received;
    for (uint32_t e = 0; e < split.cut_edges.size(); ++e) {
      const dag::CutEdge& edge = split.cut_edges[e];
      const bool backward = model.graph.producer(edge.value).phase == dag::Phase::Backward;
      // Null peers send noise, which is finite: what would not be goes dense here by what the graph says.
      const compress::Codec codec = plan::may_be_infinite(model.graph, edge.value)
                                        ? compress::Codec{}
                                        : plan::codec_of(plan.codecs, edge.from_stage, edge.to_stage,
                                                         backward, model.graph.spec(edge.value));
      if (edge.to_stage == s) {
        program.receives.push_back({e, edge.received, edge.from_stage, codec});
        received.insert(edge.received.index);
      }
      if (edge.from_stage == s) program.sends.push_back({e, edge.sent, edge.to_stage, codec});
    }
    for (const dag::ValueId input : piece.graph.inputs())
      if (!received.contains(input.index)) program.data_inputs.push_back(piece.graph.value(input).name);
    program.graph = std::make_shared<const dag::Graph>(std::move(piece.graph));
    auto assignment = std::make_shared<proto::AssignStage>();
    assignment->run = 1;
    assignment->plan_version = 1;
    assignment->seat = {s};
    assignment->stage_count = count;
    assignment->training.batch_size = model.samples();
    assignment->training.microbatch_size = model.microbatch_size;
    assignment->training.steps = steps;
    assignment->microbatches_in_flight = plan.stages[s].microbatches_in_flight;
    assignment->programs.push_back(std::move(program));
    assignments.push_back(std::move(assignment));
  }
  return assignments;
}

// ---- what its device takes ----

// As the executor of a null device counts it (peer/executor.cc, peer/backend/null).
struct StageSeconds {
  std::vector<double> segments;    // of a microbatch
  std::vector<double> accumulate;  // and of each but the first of a step
  double update = 0;
};
StageSeconds seconds_of(const proto::StageProgram& program, const plan::Rates& rates, uint32_t slots) {
  const dag::Graph& graph = *program.graph;
  StageSeconds seconds{std::vector<double>(program.segment_count, 0),
                       std::vector<double>(program.segment_count, 0), 0};
  for (const plan::GroupCost& group : plan::group_costs(graph))
    if (group.has_kernel)
      seconds.segments[program.segment_of_op[group.begin]] += plan::seconds_of(group, rates);
  const auto passes = [&](int count, Bytes bytes) {
    return count * static_cast<double>(bytes.value) / rates.memory_bytes_per_second;
  };
  for (const dag::GraphOutput& output : graph.outputs()) {
    const Bytes bytes = graph.spec(output.value).bytes();
    const uint32_t segment = program.segment_of_op[graph.value(output.value).producer.index];
    if (output.role == dag::OutputRole::StateUpdate) seconds.segments[segment] += passes(2, bytes);
    if (output.role != dag::OutputRole::Gradient) continue;
    seconds.accumulate[segment] += plan::accumulate_seconds(bytes, rates);
    seconds.update += passes(1, bytes) + plan::update_seconds(bytes, {.slots = slots}, rates);
  }
  return seconds;
}

// ---- the clock ----

class Clock {
 public:
  Instant now() const { return now_; }
  void at(Instant when, std::function<void()> what) {
    events_.push({std::max(when, now_), next_++, std::move(what)});
  }
  // Everything that happens at the next time that something does. False: nothing ever will.
  bool advance() {
    if (events_.empty()) return false;
    now_ = events_.top().when;
    while (!events_.empty() && events_.top().when == now_) {
      auto what = std::move(const_cast<Event&>(events_.top()).what);
      events_.pop();
      what();
    }
    return true;
  }

 private:
  struct Event {
    Instant when;
    uint64_t number;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return when != other.when ? when > other.when : number > other.number;
    }
  };
  Instant now_{};
  uint64_t next_ = 0;
  std::priority_queue<Event> events_;
};

// ---- the network ----

// A line that the flows of one device share: bytes go in, and whoever waits for the last of them is told.
class AccessLine {
 public:
  AccessLine(Clock& clock, double bytes_per_second) : clock_(clock) {
    if (bytes_per_second < plan::kUnlimited) line_.emplace(bytes_per_second);
  }
  bool is_limited() const { return line_.has_value(); }
  uint32_t add(std::function<void(size_t size, Instant at)> passed) {
    passed_.push_back(std::move(passed));
    return line_ ? line_->add() : 0;
  }
  void enter(uint32_t flow, size_t size, Instant at) {
    line_->enter(flow, size, at);
    wake();
  }

 private:
  void wake() {
    std::optional<Instant> first;
    for (uint32_t flow = 0; flow < passed_.size(); ++flow)
      if (const auto next = line_->next(flow); next && (!first || *next < *first)) first = next;
    if (!first || (woken_ && *woken_ <= *first)) return;
    woken_ = *first;
    clock_.at(*first, [this, at = *first] {
      if (woken_ != at) return;
      woken_.reset();
      for (uint32_t flow = 0; flow < passed_.size(); ++flow)
        for (const auto& piece : line_->take(flow, clock_.now())) passed_[flow](piece.size, piece.at);
      wake();
    });
  }
  Clock& clock_;
  std::optional<net::SharedLine> line_;
  std::vector<std::function<void(size_t, Instant)>> passed_;  // by flow
  std::optional<Instant> woken_;
};

// What one stage sends another, in order: over the sender's uplink, the path, and the receiver's downlink. A
// line without a limit passes a tensor as a whole, and then its last byte is what counts.
class Flow {
 public:
  Flow(Clock& clock, const plan::LinkView& path, AccessLine& uplink, AccessLine& downlink)
      : clock_(clock),
        path_({.bytes_per_second = path.bytes_per_second, .delay = path.latency}, path.latency * 2, 1, 1),
        uplink_(uplink),
        downlink_(downlink) {
    if (uplink_.is_limited())
      on_uplink_ = uplink_.add([this](size_t size, Instant at) { enter_path(size, at); });
    if (downlink_.is_limited()) on_downlink_ = downlink_.add([this](size_t size, Instant) { arrive(size); });
  }
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  void send(size_t size, std::function<void()> arrived) {
    waiting_.push_back({size, std::move(arrived)});
    if (uplink_.is_limited())
      uplink_.enter(on_uplink_, size, clock_.now());
    else
      enter_path(size, clock_.now());
  }

 private:
  void enter_path(size_t size, Instant at) {
    if (!downlink_.is_limited()) {
      clock_.at(path_.enter(size, at), [this, size] { arrive(size); });
      return;
    }
    // In pieces: the downlink carries the first bytes while the path carries the last.
    for (size_t left = size; left > 0;) {
      const size_t piece = std::min(left, kPiece);
      downlink_.enter(on_downlink_, piece, path_.enter(piece, at));
      left -= piece;
    }
  }
  void arrive(size_t size) {
    came_ += size;
    while (!waiting_.empty() && came_ >= waiting_.front().size) {
      came_ -= waiting_.front().size;
      auto arrived = std::move(waiting_.front().arrived);
      waiting_.pop_front();
      arrived();
    }
  }
  static constexpr size_t kPiece = 64 << 10;
  struct Waiting {
    size_t size;
    std::function<void()> arrived;
  };
  Clock& clock_;
  net::LinkModel path_;
  AccessLine &uplink_, &downlink_;
  uint32_t on_uplink_ = 0, on_downlink_ = 0;
  std::deque<Waiting> waiting_;
  size_t came_ = 0;
};

size_t wire_bytes(const proto::TensorHeader& header) {
  const size_t frame = kFrameHeader + proto::encode_header(header).size() +
                       static_cast<size_t>(proto::payload_bytes(header.spec, header.codec).value);
  return frame + (frame + kTlsRecord - 1) / kTlsRecord * kTlsRecordOverhead;
}

// ---- stages at work ----

class Cluster {
 public:
  Cluster(const Model& model, const plan::Plan& plan, const plan::ClusterView& view, Assignments assignments,
          const PlayOptions& options)
      : options_(options), assignments_(std::move(assignments)), view_(view) {
    for (uint32_t s = 0; s < assignments_.size(); ++s) {
      Stage& stage = stages_.emplace_back();
      stage.device = plan.stages[s].devices.front();
      const plan::DeviceView& device = view.devices()[stage.device];
      stage.machine = std::make_unique<peer::StageMachine>(
          assignments_[s], peer::StageMachine::Options{.script = {.tasks_ahead = options.tasks_ahead}});
      stage.seconds = seconds_of(assignments_[s]->programs[0], device.rates, model.optimizer_slots);
      stage.uplink = std::make_unique<AccessLine>(clock_, device.uplink);
      stage.downlink = std::make_unique<AccessLine>(clock_, device.downlink);
      if (stage.downlink->is_limited())
        stage.data_flow = stage.downlink->add([this, s](size_t size, Instant) { take_data(s, size); });
      const dag::Graph& graph = *assignments_[s]->programs[0].graph;
      for (const dag::ValueId input : graph.inputs())
        if (const auto& names = assignments_[s]->programs[0].data_inputs;
            std::find(names.begin(), names.end(), graph.value(input).name) != names.end())
          stage.data_bytes += static_cast<size_t>(graph.spec(input).bytes().value);
      stage.sends_of_segment.resize(assignments_[s]->programs[0].segment_count);
      for (const proto::EdgeEnd& end : assignments_[s]->programs[0].sends) add_send(s, end, graph);
    }
    ends_.assign(options.steps, {});
    updated_.assign(options.steps, 0);
    samples_ = model.samples();
  }

  Result<Played> run() {
    grant();
    for (uint32_t s = 0; s < stages_.size(); ++s) react(s);
    while (committed_ < options_.steps) {
      if (!clock_.advance()) return fail(stuck());
      for (auto touched = std::exchange(touched_, {}); !touched.empty();
           touched = std::exchange(touched_, {}))
        for (const uint32_t s : touched) react(s);
      if (failure_) return fail(*failure_);
    }
    Played played{.step_ends = {}, .step = {}, .bytes_per_step = bytes_ / options_.steps};
    for (const Instant end : ends_) played.step_ends.push_back(end.time_since_epoch());
    played.step = (played.step_ends.back() - played.step_ends.front()) /
                  std::max<int64_t>(1, int64_t{options_.steps} - 1);
    if (options_.steps == 1) played.step = played.step_ends.front();
    return played;
  }

 private:
  struct Send {
    proto::TensorHeader header;
    uint32_t to = 0;
    size_t bytes = 0;
    Flow* flow = nullptr;
  };
  struct Stage {
    uint32_t device = 0;
    std::unique_ptr<peer::StageMachine> machine;
    StageSeconds seconds;
    std::unique_ptr<AccessLine> uplink, downlink;
    std::vector<std::vector<Send>> sends_of_segment;
    std::deque<Task> tasks;  // the first one runs
    size_t data_bytes = 0, data_came = 0;
    uint32_t data_flow = 0;
    std::deque<MicrobatchKey> data_asked;
  };

  void add_send(uint32_t s, const proto::EdgeEnd& end, const dag::Graph& graph) {
    const proto::StageProgram& program = assignments_[s]->programs[0];
    Send send{.header = {.run = 1,
                         .plan_version = 1,
                         .edge = end.edge,
                         .spec = graph.spec(end.value),
                         .codec = end.codec},
              .to = end.stage};
    send.bytes = wire_bytes(send.header);
    stages_[s].sends_of_segment[program.segment_of_op[graph.value(end.value).producer.index]].push_back(send);
  }
  // Made when first used, for both ends must be there.
  Flow& flow(uint32_t from, uint32_t to) {
    auto& flow = flows_[{from, to}];
    if (!flow)
      flow = std::make_unique<Flow>(clock_, view_.path(stages_[from].device, stages_[to].device),
                                    *stages_[from].uplink, *stages_[to].downlink);
    return *flow;
  }

  // What the broker does: grants so many steps beyond the last that all stages have done.
  void grant() {
    const uint64_t until = std::min<uint64_t>(options_.steps, committed_ + kGrantedAhead);
    if (until <= granted_) return;
    granted_ = until;
    const proto::Command command{.run = 1,
                                 .plan_version = 1,
                                 .kind = proto::CommandKind::Advance,
                                 .step = until,
                                 .sequence = ++sequence_,
                                 .committed = committed_};
    for (uint32_t s = 0; s < stages_.size(); ++s) {
      note(stages_[s].machine->on_command(command));
      touched_.insert(s);
    }
  }

  // All that the stage can do now.
  void react(uint32_t s) {
    Stage& stage = stages_[s];
    for (const MicrobatchKey& key : stage.machine->fetches()) fetch(s, key);
    for (const proto::Message& message : stage.machine->take_reports())
      if (const auto* report = std::get_if<proto::StepReport>(&message); report && report->updated)
        take_report(report->step);
    stage.machine->take_finished();
    const bool was_idle = stage.tasks.empty();
    while (const auto task = stage.machine->next_task(clock_.now())) stage.tasks.push_back(*task);
    if (was_idle && !stage.tasks.empty()) begin_task(s);
  }
  void begin_task(uint32_t s) {
    const Duration takes = seconds_of_task(stages_[s], stages_[s].tasks.front());
    clock_.at(clock_.now() + takes, [this, s, takes] { end_task(s, takes); });
  }
  static Duration seconds_of_task(const Stage& stage, const Task& task) {
    if (task.kind != TaskKind::Segment) return duration(stage.seconds.update);
    return duration(stage.seconds.segments[task.segment] +
                    (task.key.microbatch > 0 ? stage.seconds.accumulate[task.segment] : 0));
  }
  void end_task(uint32_t s, Duration busy) {
    Stage& stage = stages_[s];
    const Task task = stage.tasks.front();
    stage.tasks.pop_front();
    if (task.kind == TaskKind::Segment)
      for (const Send& send : stage.sends_of_segment[task.segment]) {
        proto::TensorHeader header = send.header;
        header.step = task.key.step;
        header.microbatch = task.key.microbatch;
        bytes_ += static_cast<int64_t>(send.bytes);
        flow(s, send.to).send(send.bytes, [this, s, to = send.to, header] {
          note(stages_[to].machine->on_tensor({s}, header));
          touched_.insert(to);
        });
      }
    stage.machine->on_task_done(clock_.now(), task, {.busy = busy, .squares = {}, .statistics = {}});
    touched_.insert(s);
    if (!stage.tasks.empty()) begin_task(s);
  }

  // Data come over the downlink alone, wherever the broker is.
  void fetch(uint32_t s, const MicrobatchKey& key) {
    Stage& stage = stages_[s];
    if (!stage.downlink->is_limited()) {
      clock_.at(clock_.now(), [this, s, key] { give_data(s, key); });
      return;
    }
    stage.data_asked.push_back(key);
    stage.downlink->enter(stage.data_flow, stage.data_bytes, clock_.now());
  }
  void take_data(uint32_t s, size_t size) {
    Stage& stage = stages_[s];
    stage.data_came += size;
    for (; !stage.data_asked.empty() && stage.data_came >= stage.data_bytes; stage.data_asked.pop_front()) {
      stage.data_came -= stage.data_bytes;
      give_data(s, stage.data_asked.front());
    }
  }
  void give_data(uint32_t s, const MicrobatchKey& key) {
    const uint32_t size = assignments_[s]->training.microbatch_size;
    stages_[s].machine->on_data(key, (key.step - 1) * samples_ + uint64_t{key.microbatch} * size);
    touched_.insert(s);
  }

  void take_report(uint64_t step) {
    if (++updated_[step - 1] < stages_.size()) return;
    ends_[step - 1] = clock_.now();
    committed_ = step;
    grant();
  }

  void note(const Status& status) {
    if (!status && !failure_) failure_ = status.error();
  }
  Error stuck() const {
    uint32_t last = 0;
    for (uint32_t s = 0; s < stages_.size(); ++s)
      if (stages_[s].machine->completed_step() < stages_[last].machine->completed_step()) last = s;
    return {ErrorCode::Internal, "the stages wait for each other: stage " + std::to_string(last) +
                                     " has done " + std::to_string(stages_[last].machine->completed_step()) +
                                     " steps"};
  }

  const PlayOptions options_;
  const Assignments assignments_;
  const plan::ClusterView& view_;
  Clock clock_;
  std::deque<Stage> stages_;
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Flow>> flows_;
  std::set<uint32_t> touched_;
  std::vector<Instant> ends_;    // by step
  std::vector<size_t> updated_;  // by step: stages
  uint64_t committed_ = 0, granted_ = 0, sequence_ = 0, samples_ = 0;
  int64_t bytes_ = 0;
  std::optional<Error> failure_;
};

}  // namespace

Result<Played> play(const Model& model, const plan::Plan& plan, const plan::ClusterView& cluster,
                    const PlayOptions& options) {
  WEFT_CHECK(options.steps > 0);
  WEFT_TRY(Assignments assignments, assignments_of(model, plan, options.steps));
  return Cluster(model, plan, cluster, std::move(assignments), options).run();
}

}  // namespace weft::bench
