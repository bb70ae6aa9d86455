#include "bench/stage_runs.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>

#include "base/rng.h"
#include "dag/op_table.h"

namespace weft::bench {

using dag::ValueId;

double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

namespace {

// Float32 within `scale` of 0, integers from 0 to below `limit`.
dag::Tensor random_tensor(const dag::TensorSpec& spec, double scale, int64_t limit, Rng& rng) {
  dag::Tensor tensor(spec);
  if (spec.dtype == dag::DType::F32)
    for (float& x : tensor.mutable_as<float>())
      x = static_cast<float>(scale * (static_cast<double>(rng.next_u32()) * 0x1p-31 - 1));
  if (spec.dtype == dag::DType::I64)
    for (int64_t& x : tensor.mutable_as<int64_t>())
      x = static_cast<int64_t>(rng.below(static_cast<uint64_t>(std::max<int64_t>(limit, 1))));
  return tensor;
}

// What each integer input indexes, as far as one sees: it must stay below that.
std::map<uint32_t, int64_t> index_limits(const dag::Graph& graph) {
  std::vector<uint32_t> shows(graph.values().size(), ValueId::kNone);
  for (const ValueId input : graph.inputs()) shows[input.index] = input.index;
  std::map<uint32_t, int64_t> limits;
  for (const dag::Op& op : graph.ops()) {
    const dag::OpRow& row = dag::op_table().row(op.kind);
    if (row.keeps_values) shows[op.outputs[0].index] = shows[op.inputs[0].index];
    if (row.index.operand < 0) continue;
    const uint32_t input = shows[op.inputs[static_cast<size_t>(row.index.operand)].index];
    const auto axis = static_cast<size_t>(op.attributes.get_int(dag::Attr::Axis));
    const int64_t size = graph.spec(op.inputs[0]).shape[axis];
    if (input != ValueId::kNone)
      limits[input] = std::min(limits.try_emplace(input, size).first->second, size);
  }
  return limits;
}

Status fill(Stage& stage) {
  Rng rng(11, 1);
  const dag::Graph& graph = stage.executor->graph();
  const auto limits = index_limits(graph);
  for (const ValueId input : graph.inputs()) {
    const auto limit = limits.find(input.index);
    stage.inputs.emplace_back(
        input, random_tensor(graph.spec(input), 1, limit == limits.end() ? 2 : limit->second, rng));
  }
  for (const dag::Initializer& one : graph.initializers()) {
    const dag::TensorSpec& spec = graph.spec(one.value);
    const double fan = spec.rank() > 1 ? static_cast<double>(spec.element_count()) /
                                             static_cast<double>(std::max<int64_t>(1, spec.shape[0]))
                                       : 1;
    WEFT_TRY_STATUS(stage.executor->state().write(
        dag::of_initializer(one.name), random_tensor(spec, 1 / std::sqrt(std::max(fan, 1.0)), 2, rng)));
  }
  return {};
}

}  // namespace

Result<Stage> make_stage(dag::StageGraph of, std::vector<ValueId> sends, const cli::PlannedJob& job,
                         peer::Backend& backend) {
  Stage stage;
  stage.segment_of_op = of.segment_of_op;
  stage.segments = of.segment_count;
  stage.seconds.resize(of.segment_count);
  WEFT_TRY(stage.executor, peer::Executor::create(std::make_shared<const dag::Graph>(std::move(of.graph)),
                                                  std::make_shared<peer::State>(backend),
                                                  {.accumulates = job.microbatches > 1,
                                                   .kept = std::move(sends),
                                                   .segment_of_op = stage.segment_of_op,
                                                   .optimizer = job.job.optimizer}));
  WEFT_TRY(stage.microbatch, stage.executor->make_microbatch());
  stage.kernels.resize(stage.executor->program().groups.size());
  stage.microbatch->turn = dag::gradient_turn(job.microbatches - 1, job.microbatches, 1);
  stage.microbatch->context = {.seed = 1, .step = 1, .microbatch_size = job.job.microbatch_size};
  WEFT_TRY_STATUS(fill(stage));
  return stage;
}

Status run_once(Stage& stage) {
  const dag::Graph& graph = stage.executor->graph();
  for (uint32_t segment = 0; segment < stage.segments; ++segment) {
    for (const auto& [input, tensor] : stage.inputs)
      if (stage.segment_of_op[graph.value(input).producer.index] == segment)
        WEFT_TRY_STATUS(stage.executor->set_value(*stage.microbatch, input, tensor));
    const double begin = now();
    WEFT_TRY_STATUS(stage.executor->run(*stage.microbatch, segment));
    stage.seconds[segment].push_back(now() - begin);
  }
  const double begin = now();
  WEFT_TRY_STATUS(stage.executor->update({.step = 2, .learning_rate = 0, .gradient_scale = 1}));
  stage.update.push_back(now() - begin);
  return {};
}

}  // namespace weft::bench
