#include "bench/wide_area/player.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "bench/wide_area/assignments.h"
#include "bench/wide_area/clock.h"
#include "bench/wide_area/lines.h"
#include "peer/machine/stage.h"
#include "plan/agreement.h"
#include "proto/agreed_weights.h"

namespace weft::bench {
namespace {

using peer::MicrobatchKey;
using peer::Task;
using peer::TaskKind;

constexpr uint64_t kGrantedAhead = 8;  // steps: broker/run/run.h

Duration duration(double seconds) { return Duration(static_cast<int64_t>(seconds * 1e9)); }

// The stages of a pipeline, or of all replicas, at work.
class Cluster {
 public:
  // `devices`: by assignment.
  Cluster(const Model& model, const std::vector<uint32_t>& devices, const plan::ClusterView& view,
          Assignments assignments, uint32_t tasks_ahead)
      : assignments_(std::move(assignments)), view_(view), last_(assignments_.front()->training.steps) {
    if (assignments_.front()->local) local_ = assignments_.front()->local->steps;
    for (uint32_t s = 0; s < assignments_.size(); ++s) {
      Stage& stage = stages_.emplace_back();
      stage.device = devices[s];
      stage.seat = assignments_[s]->seat;
      if (stage.seat.stage == 0) first_of_replica_.push_back(s);
      stage.agreed = proto::agreed_weights(*assignments_[s]);
      const plan::DeviceView& device = view.devices()[stage.device];
      stage.machine = std::make_unique<peer::StageMachine>(
          assignments_[s], peer::StageMachine::Options{.script = {.tasks_ahead = tasks_ahead}});
      stage.seconds = seconds_of(assignments_[s]->programs[0], device.rates, model.optimizer_slots);
      stage.uplink = std::make_unique<AccessLine>(clock_, device.uplink);
      stage.downlink = std::make_unique<AccessLine>(clock_, device.downlink);
      if (stage.downlink->is_limited())
        stage.data_flow = stage.downlink->add([this, s](size_t size, Instant) { take_data(s, size); });
      const dag::Graph& graph = *assignments_[s]->programs[0].graph;
      const std::vector<Bytes> data = plan::data_bytes(model.graph);  // a stage alone knows no vocabulary
      for (size_t i = 0; i < data.size(); ++i)
        if (const auto& names = assignments_[s]->programs[0].data_inputs;
            std::find(names.begin(), names.end(), model.graph.value(model.graph.inputs()[i]).name) !=
            names.end())
          stage.data_bytes += static_cast<size_t>(data[i].value);
      stage.sends_of_segment.resize(assignments_[s]->programs[0].segment_count);
      for (const proto::EdgeEnd& end : assignments_[s]->programs[0].sends) add_send(s, end, graph);
    }
    ends_.assign(last_, {});
    updated_.assign(last_, 0);
  }

  Status run() {
    grant();
    for (uint32_t s = 0; s < stages_.size(); ++s) react(s);
    while (committed_ < last_) {
      if (!clock_.advance()) return fail(stuck());
      for (auto touched = std::exchange(touched_, {}); !touched.empty();
           touched = std::exchange(touched_, {}))
        for (const uint32_t s : touched) react(s);
      if (failure_) return fail(*failure_);
    }
    return {};
  }

  const std::vector<Instant>& ends() const { return ends_; }    // by step
  int64_t bytes() const { return bytes_; }                      // between stages of one replica
  int64_t bytes_of_agreement() const { return agreed_bytes_; }  // between replicas
  Instant last_update() const { return last_update_; }

 private:
  struct Send {
    proto::TensorHeader header;
    uint32_t to = 0;
    size_t bytes = 0;
  };
  struct Stage {
    uint32_t device = 0;
    plan::Seat seat{};
    std::vector<proto::AgreedWeight> agreed;
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
                         .replica = static_cast<uint16_t>(stages_[s].seat.replica),
                         .spec = graph.spec(end.value),
                         .codec = end.codec},
              .to = index_of(other_end(end, stages_[s].seat))};
    send.bytes = wire_bytes(send.header);
    stages_[s].sends_of_segment[program.segment_of_op[graph.value(end.value).producer.index]].push_back(send);
  }
  uint32_t index_of(const plan::Seat& seat) const { return first_of_replica_[seat.replica] + seat.stage; }
  // Made when first used, for both ends must be there.
  Flow& flow(uint32_t from, uint32_t to) {
    auto& flow = flows_[{from, to}];
    if (!flow)
      flow = std::make_unique<Flow>(clock_, view_.path(stages_[from].device, stages_[to].device),
                                    *stages_[from].uplink, *stages_[to].downlink);
    return *flow;
  }

  // How far steps may be granted, as broker/run/run_commands.cc has it: not past an agreement that is not
  // over, nor past a round's end before all are at its last step.
  uint64_t border() const {
    if (!local_ || committed_ == last_) return last_;
    const uint64_t next = committed_ + 1, end = next_end(*local_, next);
    if (next < end) return end;
    return std::min(next_agreement(*local_, next), next_end(*local_, std::min(end + 1, last_)));
  }
  // What the broker does: grants so many steps beyond the last that all stages have done.
  void grant() {
    const uint64_t until = std::min(border(), committed_ + kGrantedAhead);
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
    take_reports(s);
    stage.machine->take_finished();
    const bool was_idle = stage.tasks.empty();
    while (const auto task = stage.machine->next_task(clock_.now())) stage.tasks.push_back(*task);
    take_reports(s);  // of steps that the replica does not make, too
    if (was_idle && !stage.tasks.empty()) begin_task(s);
  }
  void take_reports(uint32_t s) {
    for (const proto::Message& message : stages_[s].machine->take_reports())
      if (const auto* report = std::get_if<proto::StepReport>(&message); report && report->updated)
        take_report(report->step);
  }
  void begin_task(uint32_t s) {
    const Duration takes = seconds_of_task(stages_[s], stages_[s].tasks.front());
    clock_.at(clock_.now() + takes, [this, s, takes] { end_task(s, takes); });
  }
  static Duration seconds_of_task(const Stage& stage, const Task& task) {
    if (task.kind == TaskKind::Update) return duration(stage.seconds.update);
    if (task.kind != TaskKind::Segment) return {};
    return duration(stage.seconds.segments[task.segment] +
                    (task.key.microbatch > 0 ? stage.seconds.accumulate[task.segment] : 0));
  }
  void end_task(uint32_t s, Duration busy) {
    Stage& stage = stages_[s];
    const Task task = stage.tasks.front();
    stage.tasks.pop_front();
    if (task.kind == TaskKind::Update) last_update_ = clock_.now();
    if (task.kind == TaskKind::Segment)
      for (const Send& send_of : stage.sends_of_segment[task.segment]) {
        proto::TensorHeader header = send_of.header;
        header.step = task.key.step;
        header.microbatch = task.key.microbatch;
        bytes_ += static_cast<int64_t>(send_of.bytes);
        send(s, send_of.to, header, send_of.bytes);
      }
    if (task.kind == TaskKind::Differ || task.kind == TaskKind::Mean) send_agreed(s, task);
    stage.machine->on_task_done(clock_.now(), task, {.busy = busy, .squares = {}, .statistics = {}});
    touched_.insert(s);
    if (!stage.tasks.empty()) begin_task(s);
  }

  void send(uint32_t from, uint32_t to, const proto::TensorHeader& header, size_t bytes) {
    flow(from, to).send(bytes, [this, from, to, header] {
      note(stages_[to].machine->on_tensor(stages_[from].seat, header));
      touched_.insert(to);
    });
  }
  // As peer/service/seat_agreement.cc: differences to who takes the mean, means to all others.
  void send_agreed(uint32_t s, const Task& task) {
    const Stage& stage = stages_[s];
    const bool is_mean = task.kind == TaskKind::Mean;
    const replicas::OuterRound round = round_of(*local_, task.key.step);
    for (const proto::AgreedWeight& weight : stage.agreed) {
      if (weight.is_ours != is_mean || !round.is_about(weight.tensor->fragment)) continue;
      const proto::AgreedTensor& tensor = *weight.tensor;
      const proto::TensorHeader header{
          .run = 1,
          .plan_version = 1,
          .step = round.steps_before,
          .edge = tensor.number,
          .program = proto::ProgramKind::Agree,
          .direction = is_mean ? proto::Direction::Backward : proto::Direction::Forward,
          .replica = static_cast<uint16_t>(stage.seat.replica),
          .spec = weight.spec,
          .codec = weight.codec(*assignments_[s])};
      const size_t bytes = wire_bytes(header);
      for (uint32_t replica = 0; replica < tensor.stages.size(); ++replica) {
        if (is_mean ? replica == stage.seat.replica : replica != tensor.owner) continue;
        agreed_bytes_ += static_cast<int64_t>(bytes);
        send(s, index_of({tensor.stages[replica], replica}), header, bytes);
      }
    }
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
    const dag::TrainingSpec& training = assignments_[s]->training;
    stages_[s].machine->on_data(key, (step_of_data(*assignments_[s], key) - 1) * training.batch_size +
                                         uint64_t{key.microbatch} * training.microbatch_size);
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
    return {ErrorCode::Internal, "the stages wait for each other: " + to_string(stages_[last].seat) +
                                     " has done " + std::to_string(stages_[last].machine->completed_step()) +
                                     " steps"};
  }

  const Assignments assignments_;
  const plan::ClusterView& view_;
  const uint64_t last_;  // step
  std::optional<replicas::LocalSteps> local_;
  Clock clock_;
  std::deque<Stage> stages_;
  std::vector<uint32_t> first_of_replica_;  // its first stage
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Flow>> flows_;
  std::set<uint32_t> touched_;
  std::vector<Instant> ends_;    // by step
  std::vector<size_t> updated_;  // by step: stages
  uint64_t committed_ = 0, granted_ = 0, sequence_ = 0;
  int64_t bytes_ = 0, agreed_bytes_ = 0;
  Instant last_update_{};
  std::optional<Error> failure_;
};

std::vector<uint32_t> devices_of(const plan::Plan& plan) {
  std::vector<uint32_t> devices;
  devices.reserve(plan.stages.size());
  for (const plan::StagePlan& stage : plan.stages) devices.push_back(stage.devices.front());
  return devices;
}

}  // namespace

Result<Played> play(const Model& model, const plan::Plan& plan, const plan::ClusterView& cluster,
                    const PlayOptions& options) {
  WEFT_CHECK(options.steps > 0);
  WEFT_TRY(Assignments assignments, assignments_of(model, plan, options.steps));
  Cluster stages(model, devices_of(plan), cluster, std::move(assignments), options.tasks_ahead);
  WEFT_TRY_STATUS(stages.run());
  Played played{.step_ends = {}, .step = {}, .bytes_per_step = stages.bytes() / options.steps};
  for (const Instant end : stages.ends()) played.step_ends.push_back(end.time_since_epoch());
  played.step =
      (played.step_ends.back() - played.step_ends.front()) / std::max<int64_t>(1, int64_t{options.steps} - 1);
  if (options.steps == 1) played.step = played.step_ends.front();
  return played;
}

Result<PlayedRounds> play_rounds(const Model& model, const plan::ReplicasPlan& plan,
                                 const replicas::ReplicaTerms& terms, const plan::ClusterView& cluster,
                                 const PlayOptions& options) {
  WEFT_CHECK(options.steps > 0 && terms.are_local() && plan.ranges.empty() && plan.followers.empty());
  replicas::LocalSteps local{.terms = terms};
  local.terms.count = static_cast<uint32_t>(plan.replicas.size());
  local.terms.shares = plan.shares;
  local.steps = local.terms.steps_a_round() * options.steps;
  WEFT_TRY(Assignments assignments, assignments_of(model, plan, local));
  std::vector<uint32_t> devices;
  for (const plan::Plan& replica : plan.replicas)
    for (const uint32_t device : devices_of(replica)) devices.push_back(device);
  Cluster stages(model, devices, cluster, std::move(assignments), options.tasks_ahead);
  WEFT_TRY_STATUS(stages.run());
  PlayedRounds played{.steps = local.steps,
                      .agreement = stages.ends().back() - stages.last_update(),
                      .bytes_between_stages = stages.bytes() / options.steps,
                      .bytes_of_agreement = stages.bytes_of_agreement() / options.steps};
  for (uint64_t step = terms.every; step <= stages.ends().size(); step += terms.every)
    played.ends.push_back(stages.ends()[step - 1].time_since_epoch());
  return played;
}

}  // namespace weft::bench
