// A core with its world in hand: connections by number, what each was sent, and what became durable.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "broker/broker.h"
#include "broker/jobs/answers.h"
#include "tests/broker/programs.h"
#include "tests/support/keys.h"
#include "tests/support/memory_store.h"

namespace weft::broker {

using proto::JobState;
using proto::Message;

using test::key;

// A plan of `stages` stages over the first candidates, without graphs: the core looks at none.
inline std::shared_ptr<PlannedRun> plan_for(const StartPlanning& request, uint32_t stages, uint64_t steps) {
  auto plan = std::make_shared<PlannedRun>();
  plan->training.steps = steps;
  plan->training.batch_size = 8;
  plan->microbatches = 2;
  plan->training.microbatch_size = 4;
  plan->parameter_count = stages;
  plan->fingerprint = "f";
  if (steps == 0) {  // prediction
    plan->forward_microbatches = 16;
    plan->forward_samples = 64;
    plan->prediction_stages = stages;
  }
  for (uint32_t s = 0; s < stages; ++s) {
    auto assignment = std::make_shared<proto::AssignStage>();
    assignment->run = request.job;
    assignment->plan_version = request.plan_version;
    assignment->seat = {s};
    assignment->after_step = request.checkpoint ? request.checkpoint->step : 0;
    if (steps == 0)
      assignment->programs.push_back(
          test::make_program(proto::ProgramKind::Predict, {.prediction = "y" + std::to_string(s)}));
    else
      assignment->programs.push_back(
          test::make_program(proto::ProgramKind::Train, {.losses = s + 1 == stages ? size_t{1} : 0}));
    plan->stages.push_back({{request.candidates[s].peer, {s}, 0.01}, assignment});
  }
  return plan;
}

// The world around a core: connections by number, what each was sent, and what became durable.
class World {
 public:
  explicit World(const StoredState& state = {}, BrokerOptions options = {.software = "0.1.0"})
      : broker(std::move(options), state), from_nothing(state.jobs.empty() && state.principals.empty()) {}

  Effects step(const Event& event) {
    Effects effects = broker.step({now, 1000}, event);
    const Status checked = broker.check();
    EXPECT_TRUE(checked.has_value()) << checked.error().message;
    for (const Record& record : effects.records) {
      if (const auto* changed = std::get_if<JobChanged>(&record)) states[changed->job] = changed->state;
      if (const auto* job_event = std::get_if<proto::JobEvent>(&record)) events.push_back(*job_event);
      records.push_back(record);
    }
    if (from_nothing) {
      const Status appended = store.append(effects.records);
      EXPECT_TRUE(appended.has_value()) << appended.error().message;
    }
    for (const Effect& effect : effects.effects) {
      if (const auto* send = std::get_if<Send>(&effect)) sent[send->connection].push_back(*send->message);
      if (const auto* close = std::get_if<Close>(&effect)) closed.push_back(close->connection);
      if (const auto* planning = std::get_if<StartPlanning>(&effect)) plannings.push_back(*planning);
      if (const auto* look = std::get_if<Reconsider>(&effect)) reconsiders.push_back(*look);
      if (const auto* check = std::get_if<CheckSubmission>(&effect)) checks.push_back(*check);
      if (const auto* question = std::get_if<AnswerFromStore>(&effect))
        sent[question->connection].push_back(answer_from_store(store, *question));
      if (const auto* list = std::get_if<SendJobs>(&effect))
        sent[list->connection].push_back(list_jobs(store, SendJobs(*list)));
    }
    for (const Effect& effect : effects.effects)
      if (const auto* again = std::get_if<ReopenJob>(&effect))
        step(JobReopened{again->connection, reopen(store, *again)});
    for (const Effect& effect : effects.effects)
      if (const auto* keep = std::get_if<KeepBlobs>(&effect)) {
        keeps.push_back(*keep);
        if (keeps_blobs) step(BlobsKept{keep->job, keep->step, {}});
      }
    return effects;
  }
  void join(ConnectionId connection, uint8_t who, TokenVerdict verdict = TokenVerdict::Valid,
            uint64_t instance = 0, std::optional<proto::StageHeld> holding = {},
            uint32_t minor = proto::kProtocolMinor) {
    proto::Hello hello;
    hello.minor = minor;
    if (holding) hello.holding = {*holding};
    hello.instance = instance;
    hello.name = "peer" + std::to_string(who);
    hello.device = proto::DeviceReport{.device = "cpu:1",
                                       .threads = 1,
                                       .memory = {1 << 30},
                                       .fingerprint = fingerprint,
                                       .arithmetic = arithmetic};
    if (can_be_reached) hello.device->addresses = {"127.0.0.1:" + std::to_string(9000 + who)};
    step(Introduced{connection, key(who), "test", hello, verdict});
  }
  void submit(ConnectionId client, uint32_t stages, std::vector<std::string> excluded = {},
              bool compresses = false) {
    proto::Hello hello;
    hello.role = proto::Role::Submitter;
    step(Introduced{client, key(200), "test", hello, TokenVerdict::Valid});
    step(SubmissionChecked{client,
                           proto::SubmitJob{.name = "job",
                                            .job = "",
                                            .stages = stages,
                                            .files = {},
                                            .excluded = std::move(excluded),
                                            .compresses = compresses,
                                            .arithmetic = wanted,
                                            .skips_steps = skips_steps},
                           {}});
  }
  void receive(ConnectionId connection, Message message) {
    step(Received{connection, std::make_shared<const Message>(std::move(message))});
  }
  void wait(Duration duration) {
    now += duration;
    step(Tick{});
  }
  template <typename M>
  std::vector<M> messages(ConnectionId connection) const {
    std::vector<M> found;
    const auto at = sent.find(connection);
    if (at == sent.end()) return found;
    for (const Message& message : at->second)
      if (const auto* m = std::get_if<M>(&message)) found.push_back(*m);
    return found;
  }
  // Two peers (connections 1, 2), a job of two stages, running.
  void run_two_stages(uint64_t steps) {
    join(1, 1);
    join(2, 2);
    submit(100, 2);
    plan_and_ready(2, steps);
  }
  void plan_and_ready(uint32_t stages, uint64_t steps) {
    ASSERT_FALSE(plannings.empty());
    const StartPlanning request = plannings.back();
    plannings.clear();
    const auto plan = plan_for(request, stages, steps);
    plan->predicted_step = predicted_step;
    plan->stages.front().pinned = pinned;
    if (!copies) plan->borders.checkpoint.steps = 1000;
    if (!copies)
      for (auto& stage : plan->stages) {
        auto large = std::make_shared<proto::AssignStage>(*stage.assignment);
        large->tensors = state_of_stage();
        const bool is_last = &stage == &plan->stages.back();
        large->programs.front() = test::make_program(
            proto::ProgramKind::Train, {.trained = large->tensors, .losses = is_last ? size_t{1} : 0});
        stage.assignment = large;
      }
    step(PlanningDone{request.job, request.plan_version, plan});
    version = request.plan_version;
    peers.clear();
    for (uint32_t s = 0; s < stages; ++s) peers.push_back(request.candidates[s].peer.digest.bytes[0]);
    for (const ConnectionId peer : peers)
      receive(peer, proto::StageReady{
                        .run = request.job, .plan_version = version, .persistent = {}, .microbatch = {}});
  }
  // Nothing, or what takes 8 s to copy at the usual rate.
  std::vector<proto::TensorReference> state_of_stage() const {
    if (copies) return {};
    return {{dag::of_initializer("w"), {dag::DType::F32, dag::Shape({25'000'000})}, {}}};
  }
  void report_step(uint64_t number) {
    for (size_t s = 0; s < peers.size(); ++s) {
      proto::StepReport report;
      report.run = 1;
      report.plan_version = version;
      report.step = number;
      report.squares = {4.0};
      if (s + 1 == peers.size()) report.losses = {1.0, loss};
      report.updated = true;
      receive(peers[s], report);
    }
    bool copies_state = false;  // this step
    for (const auto& command : messages<proto::Command>(peers.back()))
      copies_state = copies_state || (command.kind == proto::CommandKind::CopyState &&
                                      command.step == number && command.plan_version == version);
    if (copies_state) report_checkpoint(number);
  }
  void report_checkpoint(uint64_t number) {
    for (const ConnectionId peer : peers)
      receive(peer, proto::CheckpointReport{
                        .run = 1, .plan_version = version, .step = number, .tensors = state_of_stage()});
  }

  Instant now = Instant{} + std::chrono::hours(1);
  Broker broker;
  bool from_nothing;  // then all that is durable is in the store
  test::MemoryStore store;
  std::map<ConnectionId, std::vector<Message>> sent;
  std::vector<ConnectionId> closed;
  std::vector<StartPlanning> plannings;
  std::vector<Reconsider> reconsiders;
  bool can_be_reached = false;    // by other peers
  std::string fingerprint = "f";  // of who joins
  std::vector<CheckSubmission> checks;
  std::vector<KeepBlobs> keeps;
  bool keeps_blobs = true;  // at once
  std::vector<Record> records;
  std::vector<proto::JobEvent> events;
  std::map<proto::JobNumber, JobState> states;
  proto::PlanVersion version = 0;
  Duration predicted_step{};
  double loss = 3.0;                                              // of the second microbatch
  std::vector<dag::Arithmetic> arithmetic{dag::Arithmetic::F32};  // of those that join
  dag::Arithmetic wanted = dag::Arithmetic::F32;                  // by jobs that are submitted
  bool skips_steps = false;                                       // likewise
  bool copies = true;                                             // stages so small that each step has a copy
  bool pinned = false;                                            // nobody else may have the first stage
  std::vector<ConnectionId> peers;                                // connection = key, by stage
};

}  // namespace weft::broker
