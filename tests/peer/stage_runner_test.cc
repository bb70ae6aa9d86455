// A stage's tasks on a device that is late: all are submitted before one is waited for, and what they gave is
// taken on another thread.
#include "peer/service/stage_runner.h"

#include <gtest/gtest.h>

#include <thread>

#include "dag/autodiff.h"
#include "dag/lower.h"
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
    assignment->training = {.seed = 3,
                            .batch_size = 4 * kMicrobatches,
                            .microbatch_size = 4,
                            .steps = kSteps,
                            .optimizer = {.type = dag::OptimizerType::AdamW, .learning_rate = 0.01}};
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
