// Whom a stage waited for, and what its reports say of it.
#include <cmath>
#include <utility>

#include "tests/peer_machine/shell.h"

namespace weft::test {
namespace {

using peer::StageMachine;
using proto::CommandKind;

// A stage of one segment whose `x` comes from stage 2 (or from the broker's data) and whose `y` comes from
// stage 1. Each task takes 10 ms.
struct Waiting {
  explicit Waiting(bool reads_data = false, double clip_norm = 0) : machine(assigned(reads_data, clip_norm)) {
    ok(machine.on_command(advance(1, 2)));
  }
  static std::shared_ptr<const proto::AssignStage> assigned(bool reads_data, double clip_norm) {
    auto stage = assignment({.clip_norm = clip_norm, .reads_data = reads_data, .receives = true});
    stage.stage_count = 3;
    proto::StageProgram& program = stage.programs[0];
    if (!reads_data) program.receives.push_back({8, program.graph->inputs()[0], 2});
    return std::make_shared<const proto::AssignStage>(std::move(stage));
  }
  static void ok(const Status& status) { EXPECT_TRUE(status.has_value()) << status.error().message; }

  // `ms` pass, with all that can run.
  void run(int ms) {
    const Instant end = now + std::chrono::milliseconds(ms);
    while (!tasks.empty() || start()) {
      if (began + std::chrono::milliseconds(10) > end) break;
      now = began + std::chrono::milliseconds(10);
      peer::TaskOutcome outcome;
      outcome.busy = std::chrono::milliseconds(10);
      machine.on_task_done(now, std::exchange(tasks, {}).front(), outcome);
    }
    now = end;
  }
  bool start() {
    const auto task = machine.next_task(now);
    if (!task) return false;
    tasks.push_back(*task);
    began = now;
    return true;
  }
  void tensor(uint32_t from, uint64_t step, uint32_t microbatch) {
    proto::TensorHeader header{.run = 1, .plan_version = 1, .step = step, .microbatch = microbatch};
    header.edge = from == 1 ? 7 : 8;
    header.spec = {dag::DType::F32, {2}};
    ok(machine.on_tensor({from}, header));
  }
  void data(uint64_t step, uint32_t microbatch) {
    machine.on_data({proto::ProgramKind::Train, step, microbatch}, 0);
  }
  // "busy 30 of 75 ms, waited 20 ms for stage 1": of each update since the last call.
  std::vector<std::string> reports() {
    const auto ms = [](double seconds) { return std::to_string(std::lround(seconds * 1e3)) + " ms"; };
    std::vector<std::string> lines;
    for (const proto::Message& message : machine.take_reports()) {
      const auto& report = std::get<proto::StepReport>(message);
      if (!report.updated) {
        EXPECT_TRUE(report.links.empty());
        continue;
      }
      lines.push_back("busy " + ms(report.seconds_busy) + " of " + ms(report.seconds));
      for (const proto::LinkUse& link : report.links)
        lines.back() += ", " + ms(link.seconds_waiting) + " for stage " + std::to_string(link.seat.stage);
    }
    return lines;
  }

  StageMachine machine;
  Instant now = kStart, began{};
  std::vector<peer::Task> tasks;
};
using Lines = std::vector<std::string>;

TEST(Waits, BelongToTheStageWhoseTensorCameLast) {
  Waiting stage;
  stage.run(5);
  stage.tensor(1, 1, 0);
  stage.run(7);
  stage.tensor(2, 1, 0);  // 12 ms after the beginning
  stage.run(10);
  stage.tensor(2, 1, 1);
  stage.run(3);
  stage.tensor(1, 1, 1);  // 3 ms after the task's end
  stage.run(20);          // and the update
  EXPECT_EQ(stage.reports(), (Lines{"busy 30 ms of 45 ms, 3 ms for stage 1, 12 ms for stage 2"}));
}

TEST(Waits, AreNoneWhileSomethingRunsAndCountAnewEachStep) {
  Waiting stage;
  for (const uint32_t microbatch : {0u, 1u})
    for (const uint32_t from : {1u, 2u}) stage.tensor(from, 1, microbatch);
  stage.run(5);
  stage.tensor(1, 2, 0);
  stage.run(29);  // done after 30
  stage.tensor(2, 2, 0);
  for (const uint32_t from : {1u, 2u}) stage.tensor(from, 2, 1);
  stage.run(30);
  EXPECT_EQ(stage.reports(), (Lines{"busy 30 ms of 30 ms", "busy 30 ms of 34 ms, 4 ms for stage 2"}));
}

TEST(Waits, ForDataAreNobodys) {
  Waiting stage(/*reads_data=*/true);
  stage.machine.fetches();
  stage.run(5);
  stage.tensor(1, 1, 0);
  stage.run(6);
  stage.data(1, 0);
  stage.run(10);
  stage.data(1, 1);
  stage.run(8);
  stage.tensor(1, 1, 1);
  stage.run(20);
  EXPECT_EQ(stage.reports(), (Lines{"busy 30 ms of 49 ms, 8 ms for stage 1"}));
}

TEST(Waits, ForTheBrokerAreNobodys) {
  Waiting stage(/*reads_data=*/false, /*clip_norm=*/1);
  for (const uint64_t step : {1u, 2u})
    for (const uint32_t microbatch : {0u, 1u})
      for (const uint32_t from : {1u, 2u}) stage.tensor(from, step, microbatch);
  stage.run(40);  // two segments, squares
  ASSERT_TRUE(stage.machine.on_norm({.run = 1, .plan_version = 1, .step = 1, .norm = 1}).has_value());
  stage.run(40);  // the update, two segments, squares
  ASSERT_TRUE(stage.machine.on_norm({.run = 1, .plan_version = 1, .step = 2, .norm = 1}).has_value());
  stage.run(60);  // and 50 without a command
  stage.tensor(1, 3, 0);
  stage.run(5);
  Waiting::ok(stage.machine.on_command(advance(2, 3)));
  stage.run(5);
  stage.tensor(2, 3, 0);
  for (const uint32_t from : {1u, 2u}) stage.tensor(from, 3, 1);
  stage.run(30);
  ASSERT_TRUE(stage.machine.on_norm({.run = 1, .plan_version = 1, .step = 3, .norm = 1}).has_value());
  stage.run(10);
  EXPECT_EQ(stage.reports(),
            (Lines{"busy 40 ms of 50 ms", "busy 40 ms of 40 ms", "busy 40 ms of 100 ms, 5 ms for stage 2"}));
}

}  // namespace
}  // namespace weft::test
