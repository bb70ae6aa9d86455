#include "bench/learning/job_graphs.h"

#include <algorithm>
#include <utility>

#include "base/rng.h"
#include "dag/onnx/model.h"
#include "dag/op_table.h"
#include "peer/backend/reference/reference_kernels.h"

namespace weft::learning {

Result<JobGraphs> open_job(const std::filesystem::path& path, std::span<const std::string> sets,
                           const dag::BackendTraits& traits, uint32_t held_out_samples) {
  JobGraphs graphs;
  WEFT_TRY(graphs.job, configs::load_job(path, sets));
  const configs::Job& job = graphs.job;
  if (job.task != configs::Task::Train || !job.test)
    return fail(job.error(ErrorCode::InvalidArgument, "data", "learning is measured on held-out data"));
  WEFT_TRY(graphs.train, data::open_dataset(*job.train));
  WEFT_TRY(const std::shared_ptr<const data::Dataset> test, data::open_dataset(*job.test));
  WEFT_TRY(graphs.steps, job.total_steps(graphs.train->sample_count()));
  WEFT_TRY(const auto model, onnx::read_model(job.model));
  WEFT_TRY(graphs.job, train::with_largest_microbatch(graphs.job, model));
  WEFT_TRY(graphs.training,
           train::prepare_training(graphs.job, model, *graphs.train, peer::evaluate_reference));
  WEFT_TRY(graphs.evaluation, train::prepare_evaluation(graphs.job, model, *test, peer::evaluate_reference));
  const auto lower = [&](const dag::Graph& graph) {
    return std::make_shared<const dag::Lowered>(dag::lower_traced(graph, dag::op_table(), traits));
  };
  graphs.lowered_training = lower(graphs.training.graph);
  graphs.lowered_evaluation = lower(graphs.evaluation.graph);
  const auto requests =
      data::evaluation_requests(std::min(held_out_samples, test->sample_count()), graphs.job.microbatch_size);
  while (const auto request = requests()) {
    WEFT_TRY(auto microbatch, data::read_microbatch(*test, graphs.evaluation.feeds, *request));
    WEFT_TRY_STATUS(train::check_bounds(graphs.evaluation.bounds, microbatch));
    graphs.held_out.push_back(std::move(microbatch));
  }
  return graphs;
}

dag::Weights initial_weights(const JobGraphs& graphs, uint64_t seed) {
  dag::Weights weights = graphs.training.weights;
  // What evaluation alone reads.
  weights.insert(graphs.evaluation.weights.begin(), graphs.evaluation.weights.end());
  if (seed == 0) return weights;
  uint64_t stream = 0;
  for (const dag::Initializer& initializer : graphs.training.graph.initializers()) {
    ++stream;
    const dag::Tensor& from = weights.at(initializer.name);
    if (initializer.role != dag::InitializerRole::Parameter || from.dtype() != dag::DType::F32 ||
        from.spec().rank() < 2)
      continue;
    dag::Tensor drawn(from.spec(), from.bytes());
    const auto numbers = drawn.mutable_as<float>();
    Rng rng(seed, stream);
    for (size_t i = numbers.size(); i > 1; --i) std::swap(numbers[i - 1], numbers[rng.below(i)]);
    weights[initializer.name] = std::move(drawn);
  }
  return weights;
}

}  // namespace weft::learning
