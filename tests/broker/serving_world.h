// A world of a core in which jobs serve.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/broker/world.h"

namespace weft::broker {

inline constexpr uint32_t kStages = 2;

class ServingWorld : public World {
 public:
  explicit ServingWorld(const StoredState& state = {}) : World(state, {.software = "0.1.0"}) {}

  Effects step(const Event& event) {
    Effects effects = World::step(event);
    for (const Effect& effect : effects.effects)
      if (const auto* published = std::get_if<PublishServed>(&effect)) said.push_back(*published);
    return effects;
  }
  void receive(ConnectionId connection, Message message) {
    step(Received{connection, std::make_shared<const Message>(std::move(message))});
  }
  void join(ConnectionId connection, uint8_t who, std::vector<proto::StageHeld> holding = {}) {
    proto::Hello hello;
    hello.minor = proto::kProtocolMinor;
    hello.holding = std::move(holding);
    hello.instance = connection;
    hello.name = "peer" + std::to_string(who);
    hello.device = proto::DeviceReport{.device = "cpu:1",
                                       .threads = 1,
                                       .memory = {1 << 30},
                                       .fingerprint = "f",
                                       .arithmetic = arithmetic,
                                       .stages = holds};
    step(Introduced{connection, key(who), "test", hello, TokenVerdict::Valid});
    here[connection] = who;
  }
  void leave(ConnectionId connection) {
    here.erase(connection);
    step(Disconnected{connection, "reset by peer"});
  }
  void submit_served(const std::string& name, ConnectionId client = 100, bool is_said = true) {
    proto::Hello hello;
    hello.role = proto::Role::Submitter;
    step(Introduced{client, key(200), "test", hello, TokenVerdict::Valid});
    proto::SubmitJob job{.name = "job", .stages = kStages};
    if (is_said) job.serves = name;
    step(SubmissionChecked{client, job, {}});
  }
  // The plan that is asked for, over the first candidates or, where peers alone change, those that it names.
  std::shared_ptr<PlannedRun> served_plan(const StartPlanning& request, const std::string& name) const {
    if (request.previous) {
      auto again = std::make_shared<PlannedRun>(*request.previous);
      for (uint32_t s = 0; s < kStages; ++s) {
        auto stage = std::make_shared<proto::AssignStage>(*again->stages[s].assignment);
        stage->plan_version = request.plan_version;
        again->stages[s].assignment = stage;
        again->stages[s].peer = request.candidates[request.placed[s]].peer;
      }
      return again;
    }
    auto plan = std::make_shared<PlannedRun>();
    plan->served = {.name = name, .context = 32, .vocabulary = 256, .positions_max = 64, .sequences_max = 2};
    plan->fingerprint = "f";
    for (uint32_t s = 0; s < kStages; ++s) {
      auto stage = std::make_shared<proto::AssignStage>();
      stage->run = request.job;
      stage->plan_version = request.plan_version;
      stage->seat = {s};
      stage->stage_count = kStages;
      stage->serve = proto::ServeProgram{};
      stage->tensors = {{dag::of_initializer("w" + std::to_string(s)),
                         {dag::DType::F32, dag::Shape({10})},
                         test::key(static_cast<uint8_t>(50 + s)).digest}};
      plan->stages.push_back({{request.candidates[s].peer, {}, 0.01}, stage});
    }
    return plan;
  }
  // The newest planning gets its plan.
  void plan(const std::string& name = "m") {
    ASSERT_FALSE(plannings.empty());
    const StartPlanning request = plannings.back();
    plannings.clear();
    const auto made = served_plan(request, name);
    at_stage.clear();
    for (const PlannedStage& stage : made->stages) at_stage.push_back(stage.peer);
    version = request.plan_version;
    step(PlanningDone{request.job, request.plan_version, made});
  }
  ConnectionId connection_of(const PeerId& peer) const {
    for (const auto& [connection, who] : here)
      if (key(who) == peer) return connection;
    return 0;
  }
  void ready(proto::JobNumber job = 1) {
    for (const PeerId& peer : at_stage)
      receive(connection_of(peer),
              proto::StageReady{.run = job, .plan_version = version, .persistent = takes, .microbatch = {}});
  }
  void serve() {
    for (uint8_t who = 1; who <= kStages; ++who) join(who, who);
    submit_served("m");
    plan();
    ready();
    ASSERT_EQ(states[1], JobState::Running);
  }
  // Everybody is heard of all the while.
  void live(int seconds_long) {
    for (int i = 0; i < seconds_long; ++i) {
      now += std::chrono::seconds(1);
      for (const auto& [connection, who] : here) step(Heard{connection, now, {}});
      step(Tick{});
    }
  }
  // What was said last of a job; nothing: that it has ended.
  const std::optional<ServedState>& newest(proto::JobNumber job = 1) const {
    static const std::optional<ServedState> kNothing;
    const auto at = std::find_if(said.rbegin(), said.rend(), [&](const auto& one) { return one.job == job; });
    return at == said.rend() ? kNothing : at->state;
  }
  StoredState stored() { return *store.load(); }
  size_t commands() const {
    size_t count = 0;
    for (const auto& [connection, messages_of] : sent)
      for (const Message& message : messages_of) count += std::holds_alternative<proto::Command>(message);
    return count;
  }
  std::vector<std::string> notices() const {
    std::vector<std::string> texts;
    for (const proto::JobEvent& event : events)
      if (event.kind == proto::JobEventKind::Notice) texts.push_back(event.text);
    return texts;
  }

  uint32_t holds = 1;  // stages, each of those that join
  Bytes takes{};       // each stage that serves
  std::vector<PublishServed> said;
  std::map<ConnectionId, uint8_t> here;
  std::vector<PeerId> at_stage;
};

}  // namespace weft::broker
