// A stage's tasks on a device that is late: all are submitted before one is waited for, and what they gave is
// taken on another thread.
#include "peer/service/stage_runner.h"

#include <gtest/gtest.h>

#include <thread>

#include "dag/autodiff.h"
#include "dag/lower.h"
#include "dag/recompute.h"
#include "dag/split.h"
#include "peer/backend/reference/reference_backend.h"
#include "tests/peer/stage_runner.h"
#include "tests/support/late_backend.h"
#include "tests/support/models.h"

namespace weft::peer {
namespace {

constexpr uint32_t kMicrobatches = 3;
constexpr uint64_t kSteps = 3;

// A model as one stage that sends one of its values.
struct Stage {
  test::Model model = test::transformer(4, {.batch = 4});
  std::shared_ptr<proto::AssignStage> assignment = std::make_shared<proto::AssignStage>();

  Stage() {
    const Graph graph = dag::lower(value_or_fail(dag::differentiate(model.graph, dag::op_table())),
                                   dag::op_table(), {.fuse_elementwise = true});
    proto::StageProgram program;
    program.graph = std::make_shared<const Graph>(graph);
    program.segment_of_op.assign(graph.ops().size(), 0);
    program.segment_count = 1;
    for (const dag::Op& op : graph.ops())
      if (op.kind == dag::OpKind::MatMul && program.sends.empty())
        program.sends.push_back({0, op.outputs[0], 1});
    for (const ValueId input : graph.inputs()) program.data_inputs.push_back(graph.value(input).name);
    for (const auto& initializer : graph.initializers())
      assignment->tensors.push_back({weight_key(initializer), graph.spec(initializer.value), {}});
    assignment->training = {{.seed = 3,
                             .batch_size = 4 * kMicrobatches,
                             .microbatch_size = 4,
                             .optimizer = {.type = dag::OptimizerType::AdamW, .learning_rate = 0.01}},
                            kSteps};
    assignment->microbatches_in_flight = 2;
    assignment->programs.push_back(std::move(program));
  }

  std::unique_ptr<StageRunner> runner(Backend& backend) const {
    return value_or_fail(StageRunner::create(
        assignment,
        [&](const auto& reference) -> Result<Tensor> { return model.weights.at(reference.key.name); },
        backend));
  }

  std::vector<std::pair<Task, StageRunner::Inputs>> tasks() const {
    std::vector<std::pair<Task, StageRunner::Inputs>> tasks;
    for (uint64_t step = 1; step <= kSteps; ++step) {
      for (uint32_t m = 0; m < kMicrobatches; ++m) {
        StageRunner::Inputs inputs;
        for (const auto& [name, tensor] : model.inputs)
          inputs.data[name] =
              is_float(tensor.dtype()) ? test::random_tensor(step, m, tensor.shape()) : tensor;
        tasks.push_back({Task{.kind = TaskKind::Segment,
                              .key = {.step = step, .microbatch = m},
                              .first_segment = true,
                              .last_segment = true},
                         std::move(inputs)});
      }
      tasks.push_back({Task{.kind = TaskKind::Update, .key = {.step = step}, .with_squares = true}, {}});
      tasks.push_back({Task{.kind = TaskKind::Snapshot, .key = {.step = step}}, {}});
    }
    return tasks;
  }
};

using Numbers = std::vector<std::vector<double>>;

Numbers numbers_of(const StageRunner::Output& output) {
  Numbers numbers{output.outcome.loss, output.outcome.squares};
  for (const auto& [index, tensor] : output.sends) numbers.push_back(to_doubles(tensor));
  for (const auto& named : output.snapshot) numbers.push_back(to_doubles(named.tensor));
  return numbers;
}

TEST(StageRunner, TasksMayAllBeUnderWayBeforeOneIsTaken) {
  const Stage stage;
  const auto device = make_reference_backend();
  test::LateBackend late(*device);
  std::vector<Numbers> expected, actual;
  {
    const auto runner = stage.runner(*device);
    for (const auto& [task, inputs] : stage.tasks())
      expected.push_back(numbers_of(value_or_fail(runner->run(task, inputs))));
  }
  std::vector<StageRunner::Submitted> submitted;
  {
    const auto runner = stage.runner(late);
    for (const auto& [task, inputs] : stage.tasks())
      submitted.push_back(value_or_fail(runner->submit(task, inputs)));
  }
  std::thread([&] {
    for (StageRunner::Submitted& task : submitted) {
      const auto output = value_or_fail(StageRunner::take(std::move(task)));
      EXPECT_GT(output.outcome.busy.count(), 0) << "the device's own time";
      actual.push_back(numbers_of(output));
    }
  }).join();
  EXPECT_EQ(actual, expected);
  EXPECT_GT(late.repeated(), 0u);
}

// Forward and backward of microbatches by turns, as 1F1B has them, all submitted before one is taken: what
// lives within one task lies where the next task's will. Kept or made again, the numbers are the same.
TEST(StageRunner, MicrobatchesInFlightShareAScratchOnALateDevice) {
  Stage stage;
  const Graph whole = *stage.assignment->programs[0].graph;
  const auto device = make_reference_backend();
  test::LateBackend late(*device);
  std::vector<Numbers> expected;
  Bytes kept;
  for (const bool recomputes : {false, true}) {
    dag::Split split =
        value_or_fail(dag::split(whole, std::vector<uint32_t>(whole.ops().size(), 0), 1, dag::op_table()));
    if (recomputes) dag::recompute(split, 0, dag::op_table());
    proto::StageProgram& program = stage.assignment->programs[0];
    program.graph = std::make_shared<const Graph>(std::move(split.stages[0].graph));
    program.segment_of_op = split.stages[0].segment_of_op;
    program.segment_count = split.stages[0].segment_count;
    program.sends.clear();
    ASSERT_EQ(program.segment_count, 2u);
    std::vector<std::pair<Task, StageRunner::Inputs>> tasks;
    for (auto& [task, inputs] : stage.tasks()) {
      if (task.kind != TaskKind::Segment) {
        tasks.push_back({task, inputs});
        continue;
      }
      Task forward = task, backward = task;
      backward.segment = 1;
      forward.last_segment = backward.first_segment = false;
      tasks.push_back({forward, inputs});
      tasks.push_back({backward, inputs});
      const size_t last = tasks.size() - 1;
      if (task.key.microbatch > 0) std::swap(tasks[last - 1], tasks[last - 2]);  // two in flight
    }
    const auto runner = stage.runner(late);
    std::vector<StageRunner::Submitted> submitted;
    for (const auto& [task, inputs] : tasks) submitted.push_back(value_or_fail(runner->submit(task, inputs)));
    std::vector<Numbers> numbers;
    for (StageRunner::Submitted& task : submitted)
      numbers.push_back(numbers_of(value_or_fail(StageRunner::take(std::move(task)))));
    if (!recomputes) {
      expected = numbers;
      kept = runner->microbatch_bytes();
    }
    EXPECT_EQ(numbers, expected);
    if (recomputes) {
      EXPECT_LT(runner->microbatch_bytes() * 4, kept);
    }
    std::vector<Numbers> at_once;
    const auto prompt = stage.runner(*device);
    for (const auto& [task, inputs] : tasks)
      at_once.push_back(numbers_of(value_or_fail(prompt->run(task, inputs))));
    EXPECT_EQ(numbers, at_once);
  }
}

TEST(StageRunner, IsRefusedInAPrecisionThatTheDeviceLacks) {
  const Stage stage;
  stage.assignment->arithmetic = dag::Arithmetic::BF16;
  const auto device = make_reference_backend();
  const auto made = StageRunner::create(
      stage.assignment,
      [&](const auto& reference) -> Result<Tensor> { return stage.model.weights.at(reference.key.name); },
      *device);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, ErrorCode::Unsupported);
  EXPECT_NE(made.error().message.find("reference backend: no arithmetic in bf16, only in f32"),
            std::string::npos)
      << made.error().message;
}

TEST(StageRunner, NothingRunsBehindATaskThatFailed) {
  const Stage stage;
  const auto device = make_reference_backend();
  const auto runner = stage.runner(*device);
  auto tasks = stage.tasks();
  tasks[0].second.data.begin()->second = test::random_tensor(1, 1, {1});
  EXPECT_EQ(runner->run(tasks[0].first, tasks[0].second).error().code, ErrorCode::InvalidArgument);
  EXPECT_EQ(runner->run(tasks[1].first, tasks[1].second).error().code, ErrorCode::Cancelled);
  EXPECT_EQ(runner->submit(tasks[1].first, tasks[1].second).error().code, ErrorCode::Cancelled);
}

}  // namespace
}  // namespace weft::peer
