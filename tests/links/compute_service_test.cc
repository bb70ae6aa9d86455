// The threads that drive a device, on one that is lost or hangs at any of its calls: it is told, and nothing
// waits for ever.
#include "peer/service/compute_service.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "dag/autodiff.h"
#include "dag/lower.h"
#include "dag/op_table.h"
#include "peer/backend/reference/reference_backend.h"
#include "security/identity.h"
#include "tests/support/failing_backend.h"
#include "tests/support/models.h"

namespace weft::peer::test {
namespace {

using weft::test::DeviceCalls;
using weft::test::FailingBackend;

constexpr Duration kPatience = std::chrono::seconds(120);  // only a hang reaches it

// A small model as one stage, and what it is loaded from.
struct Model {
  weft::test::Model model = weft::test::residual_net(3, {.batch = 1, .channels = 2, .size = 4, .blocks = 1});
  std::shared_ptr<proto::AssignStage> assignment = std::make_shared<proto::AssignStage>();
  std::map<Digest, net::SharedBytes> blobs;

  Model() {
    const dag::Graph graph = dag::lower(dag::differentiate(model.graph, dag::op_table()).value(),
                                        dag::op_table(), {.fuse_elementwise = true});
    proto::StageProgram program;
    program.graph = std::make_shared<const dag::Graph>(graph);
    program.segment_of_op.assign(graph.ops().size(), 0);
    for (const dag::ValueId input : graph.inputs()) program.data_inputs.push_back(graph.value(input).name);
    assignment->programs.push_back(std::move(program));
    assignment->training = {{.seed = 3, .batch_size = 1, .microbatch_size = 1}, 1};
    uint8_t number = 0;
    for (const auto& initializer : graph.initializers()) {
      Digest sha256;
      sha256.bytes[0] = ++number;
      const auto tensor = std::make_shared<const dag::Tensor>(model.weights.at(initializer.name));
      assignment->tensors.push_back({weight_key(initializer), graph.spec(initializer.value), sha256});
      blobs[sha256] = {tensor, tensor->bytes()};
    }
  }
};

// Makes the backend and the runner, runs one step and a snapshot, asks the device, and says what came of it.
class Script {
 public:
  explicit Script(DeviceCalls::Faults faults, double learning_rate = 0)
      : calls_(std::make_shared<DeviceCalls>(faults, [this] { loop_.post([] {}); })) {  // it looks then
    model_.assignment->training.optimizer.learning_rate = learning_rate;
    identity_ = std::move(*security::Identity::generate());
    LinkService::Options link_options;
    link_options.identity = identity_.get();
    links_ = std::move(*LinkService::start(loop_, std::move(link_options), {}));
    ComputeService::Options options;
    options.make_backend = [calls = calls_]() -> Result<std::unique_ptr<Backend>> {
      WEFT_TRY_STATUS(calls->next());
      return std::make_unique<FailingBackend>(make_reference_backend(), calls);
    };
    compute_ = std::make_unique<ComputeService>(loop_, *links_, std::move(options), handlers());
  }

  // Until all was done, something failed, or a call hangs.
  void run() {
    EXPECT_TRUE(loop_.run_until(kPatience, [this] { return is_done() || calls_->is_hanging(); }));
  }
  bool is_done() const { return answered || failure; }
  ComputeService& compute() { return *compute_; }
  DeviceCalls& calls() { return *calls_; }
  net::Loop& loop() { return loop_; }

  std::optional<Error> failure;
  bool hashed = false, answered = false;

 private:
  ComputeService::Handlers handlers() {
    ComputeService::Handlers to;
    to.on_backend = [this](const Status& made) {
      if (!made) return fail_with(made.error());
      compute_->make(1, model_.assignment, model_.blobs);
    };
    to.on_runner = [this](uint64_t, const Result<RunnerSize>& made) {
      if (!made) return fail_with(made.error());
      StageRunner::Inputs inputs;
      inputs.data = model_.model.inputs;
      compute_->run(
          1, {.kind = TaskKind::Segment, .key = {.step = 1}, .first_segment = true, .last_segment = true},
          std::move(inputs));
      compute_->run(1, {.kind = TaskKind::Update, .key = {.step = 1}, .with_squares = true}, {});
      compute_->run(1, {.kind = TaskKind::Snapshot, .key = {.step = 1}}, {});
    };
    to.on_done = [this](uint64_t, const Task&, const Result<TaskOutcome>& outcome) {
      if (!outcome) fail_with(outcome.error());
    };
    to.on_not_finite = [this](uint64_t, const Task& task, const dag::StateKey& key) {
      fail_with({ErrorCode::OutOfRange, to_string(key) + " after step " + std::to_string(task.key.step)});
    };
    to.on_hashed = [this](uint64_t, const Task&, const std::vector<ComputeService::Hashed>&) {
      hashed = true;
      compute_->ask();
    };
    to.on_device = [this](const Status& status) {
      if (!status) return fail_with(status.error());
      answered = true;
    };
    return to;
  }
  void fail_with(const Error& error) {
    if (!failure) failure = error;
  }

  Model model_;
  net::Loop loop_;
  const std::shared_ptr<DeviceCalls> calls_;
  std::unique_ptr<security::Identity> identity_;
  std::unique_ptr<LinkService> links_;
  std::unique_ptr<ComputeService> compute_;
};

uint64_t calls_of_all() {
  Script script({});
  script.run();
  EXPECT_FALSE(script.failure) << script.failure->message;
  EXPECT_TRUE(script.hashed && script.answered);
  return script.calls().count();
}

TEST(ComputeService, TellsOfADeviceThatIsLostAtAnyCall) {
  const uint64_t all = calls_of_all();
  ASSERT_GT(all, 50u);
  for (uint64_t call = 1; call <= all && !HasFailure(); ++call) {
    SCOPED_TRACE("call " + std::to_string(call) + " of " + std::to_string(all));
    Script script({.lost_at = call, .hangs_at = {}});
    script.run();
    ASSERT_TRUE(script.failure.has_value());
    EXPECT_EQ(script.failure->code, ErrorCode::DeviceLost);
    EXPECT_TRUE(script.compute().rest(kPatience)) << "a thread still waits";
  }
}

TEST(ComputeService, ASnapshotThatIsNotFiniteIsToldOfAndNotHandedOver) {
  Script script({}, std::numeric_limits<double>::infinity());
  script.run();
  ASSERT_TRUE(script.failure.has_value());
  EXPECT_EQ(script.failure->code, ErrorCode::OutOfRange);
  EXPECT_NE(script.failure->message.find("after step 1"), std::string::npos) << script.failure->message;
  EXPECT_FALSE(script.hashed);
}

TEST(ComputeService, SaysThatADeviceHangsAndRestsWhenItAnswers) {
  const uint64_t all = calls_of_all();
  for (uint64_t call = 1; call <= all && !HasFailure(); ++call) {
    SCOPED_TRACE("call " + std::to_string(call) + " of " + std::to_string(all));
    Script script({.lost_at = {}, .hangs_at = call});
    script.run();
    ASSERT_TRUE(script.calls().is_hanging());
    EXPECT_FALSE(script.compute().rest(Duration::zero()));
    script.calls().release();
    EXPECT_TRUE(script.compute().rest(kPatience));
  }
}

// As the machine does with an overdue one: the stage goes, and the device is asked; it answers once the task
// that hung is done, and then takes the next stage.
TEST(ComputeService, ADeviceThatAnswersLateIsOfUseAgain) {
  const uint64_t all = calls_of_all();
  Script script({.lost_at = {}, .hangs_at = all - 10});
  script.run();
  ASSERT_TRUE(script.calls().is_hanging());
  script.compute().drop(1);
  script.compute().ask();
  script.calls().release();
  ASSERT_TRUE(script.loop().run_until(kPatience, [&] { return script.is_done(); }));
  EXPECT_TRUE(script.answered);
  EXPECT_FALSE(script.failure);
}

TEST(ComputeService, ADeviceThatIsLostIsToldOfAfterItsStageWasDropped) {
  const uint64_t all = calls_of_all();
  Script script({.lost_at = all - 10, .hangs_at = all - 10});
  script.run();
  ASSERT_TRUE(script.calls().is_hanging());
  script.compute().drop(1);
  script.calls().release();
  ASSERT_TRUE(script.loop().run_until(kPatience, [&] { return script.is_done(); }));
  ASSERT_TRUE(script.failure.has_value());
  EXPECT_EQ(script.failure->code, ErrorCode::DeviceLost);
}

}  // namespace
}  // namespace weft::peer::test
