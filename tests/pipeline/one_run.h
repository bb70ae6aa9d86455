// A run of production state machines, the broker's and the stages', with real kernels in one process: every
// message lies in a queue, and which queue is served next is drawn at random. Beside it the same run on one
// executor.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <optional>

#include "base/rng.h"
#include "broker/run/run.h"
#include "dag/slots.h"
#include "dag/split.h"
#include "peer/machine/stage.h"
#include "peer/service/encoding.h"
#include "peer/service/inbox.h"
#include "peer/service/stage_runner.h"
#include "tests/support/cuts.h"
#include "tests/support/models.h"

namespace weft::pipeline {

using dag::Graph;
using dag::Tensor;
using peer::MicrobatchKey;
using peer::Task;
using peer::TaskKind;

template <typename T>
T value_or_fail(Result<T> result) {
  if (!result) ADD_FAILURE() << result.error().message;
  return std::move(result).value();
}
inline void ok_or_fail(const Status& status) { ASSERT_TRUE(status.has_value()) << status.error().message; }

struct Case {
  std::string model;
  uint32_t stages = 2;
  double clip_norm = 0;
  bool wrap_around = false;
  bool skips = false;  // steps 1 and 3, for some of their data are not fit to be learnt from
  // Of replicas that add each step's gradients, each of up to so many stages: by replica, how many ranges of
  // microbatches it computes. Empty: one pipeline.
  std::vector<uint32_t> ranges{};
  bool coded_slots = false;
  std::string codec = "dense";  // of the gradients of such replicas
  bool shares_slots = false;    // of these replicas: slots lie with owners alone
  bool momentum = false;        // sgd with one slot, and groups of parameters; else adamw
};
inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.model << " " << c.stages << " stages, clip " << c.clip_norm
             << (c.coded_slots ? ", slots in eight bits" : "") << (c.wrap_around ? ", wrapped" : "")
             << (c.skips ? ", skipping" : "")
             << (c.ranges.empty() ? "" : ", " + std::to_string(c.ranges.size()) + " replicas")
             << (c.codec == "dense" ? "" : ", gradients as " + c.codec)
             << (c.shares_slots ? " that share slots" : "") << (c.momentum ? ", sgd" : "");
}

inline constexpr uint32_t kMicrobatches = 4, kMicrobatchSize = 4;
inline constexpr uint64_t kSteps = 5, kSeed = 7;

inline dag::TrainingSpec training_spec(const Case& of) {
  dag::TrainingSpec spec;
  spec.seed = kSeed;
  spec.batch_size = kMicrobatches * kMicrobatchSize;
  spec.microbatch_size = kMicrobatchSize;
  spec.steps = kSteps;
  spec.optimizer.type = dag::OptimizerType::AdamW;
  spec.optimizer.learning_rate = 0.01;
  spec.optimizer.weight_decay = 0.01;
  spec.schedule = {dag::ScheduleType::Cosine, 2, 0.1};
  spec.clip_norm = of.clip_norm;
  if (of.momentum) {
    spec.optimizer.type = dag::OptimizerType::Sgd;
    spec.optimizer.momentum = 0.9;
    spec.optimizer.groups = {{.parameters = {"*bias"}, .weight_decay = 0, .learning_rate_factor = 0.5},
                             {.parameters = {"*0*"}, .weight_decay = 0.2}};
  }
  if (of.coded_slots) spec.optimizer.slots = dag::SlotType::Int8;
  if (of.skips) spec.on_divergence = dag::OnDivergence::Skip;
  if (!of.ranges.empty()) spec.gradient_ranges = std::accumulate(of.ranges.begin(), of.ranges.end(), 0u);
  return spec;
}

// What the data set would give: the same for every run of a case. A NaN and an infinity spoil all that
// comes of them.
inline std::map<std::string, Tensor> data_of(const Graph& whole, const test::Model& model,
                                             const dag::TrainingSpec& spec, uint64_t step,
                                             uint32_t microbatch) {
  std::map<std::string, Tensor> data;
  for (const dag::ValueId input : whole.inputs()) {
    const std::string& name = whole.value(input).name;
    const Tensor& sample = model.inputs.at(name);
    data[name] = is_float(sample.dtype()) ? test::random_tensor(step, microbatch, sample.shape()) : sample;
    if (spec.on_divergence != dag::OnDivergence::Skip || !is_float(sample.dtype())) continue;
    if (step == 1 && microbatch == 2) data[name].mutable_as<float>()[5] = std::nanf("");
    if (step == 3 && microbatch == 0) data[name].mutable_as<float>()[5] = HUGE_VALF;
  }
  return data;
}

using State = std::map<dag::StateKey, Tensor>;

inline State train_alone(const Graph& whole, const test::Model& model, peer::Backend& backend,
                         const dag::TrainingSpec& spec) {
  auto executor = value_or_fail(peer::Executor::create(std::make_shared<const Graph>(whole),
                                                       std::make_shared<peer::State>(backend),
                                                       {.accumulates = true,
                                                        .sums_ranges = spec.gradient_ranges > 1,
                                                        .optimizer = spec.optimizer,
                                                        .undoes_statistics = true}));
  for (const auto& initializer : whole.initializers())
    ok_or_fail(executor->state().write(weight_key(initializer), model.weights.at(initializer.name)));
  const auto microbatch = value_or_fail(executor->make_microbatch());
  const dag::ValueId loss = whole.find_output(dag::OutputRole::Loss)->value;
  uint64_t skipped = 0;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    double numbers = 0;
    ok_or_fail(executor->keep_statistics());
    for (uint32_t m = 0; m < kMicrobatches; ++m) {
      microbatch->turn = dag::gradient_turn(m, kMicrobatches, spec.gradient_ranges);
      microbatch->context = {kSeed, step, m * kMicrobatchSize, kMicrobatchSize};
      for (const auto& [name, tensor] : data_of(whole, model, spec, step, m))
        ok_or_fail(executor->set_input(*microbatch, name, tensor));
      ok_or_fail(executor->run(*microbatch));
      numbers += to_doubles(value_or_fail(executor->value(*microbatch, loss))).at(0);
    }
    double sum = 0;
    for (const double square : value_or_fail(executor->gradient_squares())) sum += square;
    if (const auto statistics = value_or_fail(executor->begin_statistic_squares()))
      for (const double square : to_doubles(value_or_fail(statistics->take()))) numbers += square;
    if (spec.on_divergence == dag::OnDivergence::Skip && !std::isfinite(numbers + sum)) {
      ok_or_fail(executor->undo_statistics());
      ++skipped;
      continue;
    }
    const double norm = std::sqrt(sum) / kMicrobatches;
    ok_or_fail(executor->update({.step = step - skipped,
                                 .learning_rate = dag::scheduled_learning_rate(
                                     spec.schedule, spec.optimizer.learning_rate, step, kSteps),
                                 .gradient_scale = dag::clip_factor(spec.clip_norm, norm) / kMicrobatches}));
  }
  State state;
  for (const dag::StateKey& key : trained_state(whole, spec.optimizer))
    state[key] = value_or_fail(executor->state().read(key));
  return state;
}

inline std::vector<std::string> parameters_of(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& initializer : graph.initializers())
    if (graph.find_output(dag::OutputRole::Gradient, initializer.name)) names.push_back(initializer.name);
  return names;
}

// A stage with its machine, its runner and what has come for it.
struct StageHere {
  uint32_t index = 0;
  std::shared_ptr<const proto::AssignStage> assignment;
  std::unique_ptr<peer::StageMachine> machine;
  std::unique_ptr<peer::StageRunner> runner;
  std::unique_ptr<peer::Inbox> inbox;
};

// A cut at random of each replica; nothing: the repair of one emptied a stage.
inline std::optional<std::vector<dag::Split>> random_splits(const Graph& whole, const Case& of, Rng& rng,
                                                            uint64_t seed) {
  std::vector<dag::Split> splits;
  const size_t replicas = std::max<size_t>(1, of.ranges.size());
  while (splits.size() < replicas) {
    const uint32_t count = replicas == 1 ? of.stages : 1 + static_cast<uint32_t>(rng.below(of.stages));
    const auto stages = dag::move_sums(whole, std::span<const std::shared_ptr<const dag::Lowered>>{},
                                       test::random_stages(whole, count, rng, of.wrap_around));
    const auto split = dag::split(whole, stages, count, dag::op_table());
    if (!split) return std::nullopt;
    const uint32_t repeats = seed % 3 == 0 ? 1 : 2;  // one stage of so many
    splits.push_back(seed % 3 == 1 ? *split
                                   : test::recomputed(*split, [&](uint32_t s) { return s % repeats == 0; }));
  }
  return splits;
}

// Where a run begins that goes on.
struct Begin {
  uint64_t step = 0;
  State state{};  // after it
};

class Cluster final {
 public:
  // `splits`: by replica. `rng`: deals what is not said, and then says which message is next.
  Cluster(const Graph& whole, const test::Model& model, const std::vector<dag::Split>& splits, const Case& of,
          peer::Backend& backend, const dag::TrainingSpec& spec, Rng& rng, Begin begin = {})
      : whole_(whole),
        model_(model),
        spec_(spec),
        ranges_(of.ranges),
        codec_(compress::parse(of.codec).value()),
        shares_slots_(of.shares_slots),
        backend_(backend),
        rng_(rng),
        begin_(std::move(begin)) {
    auto plan = std::make_shared<broker::PlannedRun>();
    plan->training = spec;
    plan->microbatches = kMicrobatches;
    plan->exact_ranges = ranges_;
    plan->borders.checkpoint.steps = 2;
    const std::vector<std::string> parameters = parameters_of(whole);
    plan->parameter_count = static_cast<uint32_t>(parameters.size());
    std::vector<std::string> changed = parameters;
    for (const dag::GraphOutput& output : whole.outputs())
      if (output.role == dag::OutputRole::StateUpdate) changed.push_back(output.name);
    summed_ = deal_owners(changed, splits);
    uint32_t most = 0;
    for (const dag::Split& split : splits) most = std::max(most, static_cast<uint32_t>(split.stages.size()));
    for (uint32_t s = 0; s < most; ++s)
      for (uint32_t replica = 0; replica < splits.size(); ++replica) {
        if (s >= splits[replica].stages.size()) continue;
        add({s, replica}, splits[replica]);
        std::vector<uint32_t> indices;
        for (const auto& name : updated_parameters(*stages_.back().assignment))
          indices.push_back(static_cast<uint32_t>(std::find(parameters.begin(), parameters.end(), name) -
                                                  parameters.begin()));
        plan->stages.push_back({{.parameters = std::move(indices)}, stages_.back().assignment});
      }
    run_ = std::make_unique<broker::Run>(1, 1, plan, broker::RunBegin{.after_step = begin_.step},
                                         broker::RunOptions{.window_steps = 3, .copy_rate = 0});
  }

  // Serves one queue after the other, at random, until the run says that it is finished.
  void play() {
    carry_out(run_->start(now_));
    while (!finished_ && !testing::Test::HasFailure()) {
      for (auto& stage : stages_) react(stage);
      std::vector<std::deque<std::function<void()>>*> ready;
      for (auto& [key, queue] : queues_)
        if (!queue.empty()) ready.push_back(&queue);
      ASSERT_FALSE(ready.empty()) << "nothing is on its way and the run is not finished: step "
                                  << run_->committed_step();
      auto& queue = *ready[rng_.below(ready.size())];
      const auto deliver = std::move(queue.front());
      queue.pop_front();
      now_ += std::chrono::microseconds(1);
      deliver();
    }
  }

  // After the last step, and after each of which there is a snapshot: of the first replica.
  const State& state() const { return states_.rbegin()->second; }
  const State& state_after(uint64_t step) const { return states_.at(step); }
  // What each replica has now.
  std::vector<State> states_of_replicas() {
    std::vector<State> states(std::max<size_t>(1, ranges_.size()));
    for (StageHere& stage : stages_) {
      auto output = value_or_fail(stage.runner->run({.kind = TaskKind::Snapshot}, {}));
      for (auto& named : output.snapshot)
        states[stage.assignment->seat.replica][named.key] = std::move(named.tensor);
    }
    return states;
  }
  const std::vector<proto::AgreedTensor>& summed() const { return summed_; }
  const std::vector<proto::JobEvent>& events() const { return events_; }
  const std::vector<uint64_t>& checkpoints() const { return checkpoints_; }
  const std::vector<uint64_t>& rounds() const { return rounds_; }

 private:
  std::vector<proto::AgreedTensor> deal_owners(const std::vector<std::string>& parameters,
                                               const std::vector<dag::Split>& splits) {
    std::vector<proto::AgreedTensor> summed;
    for (const std::string& name : parameters) {
      proto::AgreedTensor tensor{.number = static_cast<uint32_t>(summed.size()),
                                 .name = name,
                                 .owner = static_cast<uint32_t>(rng_.below(splits.size()))};
      for (const dag::Split& split : splits)
        for (uint32_t s = 0; s < split.stages.size(); ++s)
          if (split.stages[s].graph.find_output(dag::OutputRole::Gradient, name) ||
              split.stages[s].graph.find_output(dag::OutputRole::StateUpdate, name))
            tensor.stages.push_back(s);
      summed.push_back(std::move(tensor));
    }
    return summed;
  }

  void add(const plan::Seat& seat, const dag::Split& split) {
    auto assignment = std::make_shared<proto::AssignStage>();
    assignment->run = 1;
    assignment->plan_version = 1;
    assignment->seat = seat;
    assignment->stage_count = static_cast<uint32_t>(split.stages.size());
    assignment->training = spec_;
    assignment->microbatches_in_flight = 1 + static_cast<uint32_t>(rng_.below(kMicrobatches));
    if (seat.stage == 0)
      assignment->microbatches_in_flight = kMicrobatches;  // wrapped ones wait for themselves
    proto::StageProgram program;
    program.graph = std::make_shared<const Graph>(split.stages[seat.stage].graph);
    program.segment_of_op = split.stages[seat.stage].segment_of_op;
    program.segment_count = split.stages[seat.stage].segment_count;
    std::set<uint32_t> received;
    for (uint32_t e = 0; e < split.cut_edges.size(); ++e) {
      const auto& edge = split.cut_edges[e];
      if (edge.to_stage == seat.stage) {
        program.receives.push_back({e, edge.received, edge.from_stage});
        received.insert(edge.received.index);
      }
      if (edge.from_stage == seat.stage) program.sends.push_back({e, edge.sent, edge.to_stage});
    }
    for (const auto input : program.graph->inputs())
      if (!received.contains(input.index)) program.data_inputs.push_back(program.graph->value(input).name);
    for (const auto& initializer : program.graph->initializers())
      assignment->tensors.push_back({weight_key(initializer), program.graph->spec(initializer.value), {}});
    assignment->after_step = begin_.step;
    for (const dag::StateKey& key : trained_state(*program.graph, spec_.optimizer))
      if (const auto found = begin_.state.find(key); found != begin_.state.end() && !is_weight(key.slot))
        assignment->tensors.push_back({key, found->second.spec(), {}});
    assignment->programs.push_back(std::move(program));
    if (!ranges_.empty()) {
      assignment->exact = proto::ExactTerms{ranges_, {}, codec_, shares_slots_};
      for (const proto::AgreedTensor& tensor : summed_)
        if (tensor.stages[seat.replica] == seat.stage) assignment->exact->tensors.push_back(tensor);
    }
    StageHere here;
    here.index = static_cast<uint32_t>(stages_.size());
    here.assignment = assignment;
    here.machine = std::make_unique<peer::StageMachine>(assignment);
    here.inbox = std::make_unique<peer::Inbox>(assignment);
    here.runner = value_or_fail(peer::StageRunner::create(
        assignment,
        [&](const auto& reference) -> Result<Tensor> {
          const auto found = begin_.state.find(reference.key);
          return found == begin_.state.end() ? model_.weights.at(reference.key.name) : found->second;
        },
        backend_));
    index_of_[seat] = here.index;
    if (shares_slots_) expect_no_more_slots(here);
    stages_.push_back(std::move(here));
  }

  // Beside one with all slots the stage has as much memory less as those of what it does not own.
  void expect_no_more_slots(const StageHere& here) {
    auto with_all = std::make_shared<proto::AssignStage>(*here.assignment);
    with_all->exact->shared_slots = false;
    const auto runner = value_or_fail(peer::StageRunner::create(
        with_all,
        [&](const auto& reference) -> Result<Tensor> { return model_.weights.at(reference.key.name); },
        backend_));
    const Graph& graph = *here.assignment->programs[0].graph;
    int64_t bytes = 0;
    for (const proto::AgreedTensor& tensor : here.assignment->exact->tensors) {
      if (tensor.owner == here.assignment->seat.replica ||
          !graph.find_output(dag::OutputRole::Gradient, tensor.name))
        continue;
      const dag::TensorSpec& spec = graph.spec(graph.find_initializer(tensor.name)->value);
      for (const dag::StateSlot slot : optimizer_slots(spec_.optimizer))
        bytes += peer::align_up(
            backend_.storage_bytes(dag::spec_of_state(slot, spec, spec_.optimizer.slots), dag::Layout::Plain)
                .value,
            backend_.alignment());
    }
    EXPECT_EQ((runner->persistent_bytes() - here.runner->persistent_bytes()).value, bytes);
  }

  void carry_out(broker::RunEffects effects) {
    for (broker::RunEffect& effect : effects) std::visit([this](auto& e) { on(e); }, effect);
    ok_or_fail(run_->check());
  }
  Status carry_out(Result<broker::RunEffects> effects) {
    if (!effects) return fail(effects.error());
    carry_out(std::move(*effects));
    return {};
  }
  void send_to_stage(uint32_t s, const proto::Message& message) {
    queues_["to " + std::to_string(s)].push_back([this, s, message] {
      if (const auto* command = std::get_if<proto::Command>(&message))
        ok_or_fail(stages_[s].machine->on_command(*command));
      if (const auto* norm = std::get_if<proto::GradientNorm>(&message))
        ok_or_fail(stages_[s].machine->on_norm(*norm));
    });
  }
  void on(const broker::IssueCommand& e) {
    EXPECT_EQ(e.command.sequence, ++issued_);
    for (uint32_t s = 0; s < stages_.size(); ++s) send_to_stage(s, e.command);
  }
  void on(const broker::TellStage& e) { send_to_stage(e.stage, e.message); }
  void on(const broker::SayEvent& e) { events_.push_back(e.event); }
  void on(const broker::RepeatedStep& e) { ADD_FAILURE() << "step " << e.step << " was done twice"; }
  void on(const broker::WholeSnapshot& e) {
    if (!e.is_durable) return rounds_.push_back(e.snapshot.step);
    checkpoints_.push_back(e.snapshot.step);
    const bool skips = spec_.on_divergence == dag::OnDivergence::Skip;
    EXPECT_EQ(e.snapshot.skipped_steps, skips ? (e.snapshot.step >= 3 ? 2u : 1u) : 0u);
  }
  void on(const broker::UploadFailed& e) { ADD_FAILURE() << e.error.message; }
  void on(const broker::Divergence& e) { ADD_FAILURE() << e.what; }
  void on(const broker::Finished&) { finished_ = true; }
  void on(const broker::Stopped&) { ADD_FAILURE() << "nobody asked it to stop"; }
  void on(const auto&) { ADD_FAILURE() << "there are no direct copies, predictions or codecs"; }

  void react(StageHere& stage) {
    const uint32_t s = stage.index;
    for (const MicrobatchKey& key : stage.machine->fetches())
      queues_["data " + std::to_string(s)].push_back([this, &stage, key] {
        peer::BulkTransfers::MicrobatchData data;
        data.tensors = data_of(whole_, model_, spec_, key.step, key.microbatch);
        stage.inbox->keep(key, std::move(data));
        stage.machine->on_data(
            key, (key.step - 1) * kMicrobatches * kMicrobatchSize + key.microbatch * kMicrobatchSize);
      });
    for (proto::Message& message : stage.machine->take_reports()) report(s, std::move(message));
    for (const MicrobatchKey& key : stage.machine->take_finished()) stage.inbox->drop(key);
    if (const auto task = stage.machine->next_task(now_))
      queues_["task " + std::to_string(s)].push_back([this, &stage, task = *task] { run(stage, task); });
  }

  void report(uint32_t s, proto::Message message) {
    queues_["from " + std::to_string(s)].push_back([this, s, message = std::move(message)] {
      if (const auto* m = std::get_if<proto::StepReport>(&message))
        ok_or_fail(carry_out(run_->on_report(now_, s, *m)));
      if (const auto* m = std::get_if<proto::CheckpointReport>(&message))
        ok_or_fail(carry_out(run_->on_report(now_, s, *m, 0)));
    });
  }

  void send(const StageHere& stage, const plan::Seat& to, const proto::TensorHeader& header, Tensor tensor) {
    const uint32_t target = index_of_.at(to);
    queues_["link " + std::to_string(stage.index) + " " + std::to_string(target)].push_back(
        [this, from = stage.assignment->seat, target, header, tensor = std::move(tensor)] {
          ok_or_fail(stages_[target].machine->on_tensor(from, header));
          stages_[target].inbox->keep(header, tensor);
        });
  }

  void run(StageHere& stage, const Task& task) {
    const proto::StageProgram& program = stage.assignment->programs[0];
    auto output = value_or_fail(stage.runner->run(task, stage.inbox->take(task)));
    const plan::Seat& seat = stage.assignment->seat;
    for (auto& [index, tensor] : output.sends) {
      const proto::EdgeEnd& end = program.sends[index];
      send(stage, other_end(end, seat),
           {.run = 1,
            .plan_version = 1,
            .step = task.key.step,
            .microbatch = task.key.microbatch,
            .edge = end.edge,
            .replica = static_cast<uint16_t>(seat.replica),
            .spec = tensor.spec()},
           tensor);
    }
    for (peer::SentShare& share : output.agreed)
      send(stage, share.to, share.header,
           value_or_fail(peer::decode_tensor(share.header, share.payload, spec_.seed)));
    if (task.kind == TaskKind::Snapshot) {
      proto::CheckpointReport checkpoint{.run = 1,
                                         .plan_version = 1,
                                         .step = task.key.step,
                                         .tensors = {},
                                         .skipped_steps = task.skipped_steps};
      for (const auto& named : output.snapshot) {
        EXPECT_TRUE(holders_.try_emplace(named.key, stage.index).first->second == stage.index)
            << to_string(named.key) << " is in two copies";
        states_[task.key.step][named.key] = named.tensor;
        checkpoint.tensors.push_back({named.key, named.tensor.spec(), {}});
      }
      EXPECT_TRUE(seat.replica == 0 || shares_slots_) << "the others have the same state";
      report(stage.index, std::move(checkpoint));
    }
    stage.machine->on_task_done(now_, task, output.outcome);
  }

  const Graph& whole_;
  const test::Model& model_;
  const dag::TrainingSpec spec_;
  const std::vector<uint32_t> ranges_;
  const compress::Codec codec_;
  const bool shares_slots_;
  peer::Backend& backend_;
  Rng& rng_;
  const Begin begin_;
  Instant now_ = Instant{} + std::chrono::seconds(1);
  std::vector<StageHere> stages_;
  std::map<plan::Seat, uint32_t> index_of_;
  std::unique_ptr<broker::Run> run_;
  std::map<std::string, std::deque<std::function<void()>>> queues_;
  std::vector<proto::AgreedTensor> summed_;
  std::map<uint64_t, State> states_;           // by step
  std::map<dag::StateKey, uint32_t> holders_;  // by what a copy has: the stage
  std::vector<proto::JobEvent> events_;
  std::vector<uint64_t> checkpoints_, rounds_;
  uint64_t issued_ = 0;
  bool finished_ = false;
};

}  // namespace weft::pipeline
