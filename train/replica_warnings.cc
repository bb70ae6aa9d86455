#include "train/replica_warnings.h"

#include <algorithm>

namespace weft::train {

bool has_running_statistics(const dag::Graph& training) {
  const auto& initializers = training.initializers();
  return std::any_of(initializers.begin(), initializers.end(), [](const dag::Initializer& initializer) {
    return initializer.role == dag::InitializerRole::RunningStatistic;
  });
}

std::vector<std::string> replica_warnings(const configs::Job& job, const dag::Graph& training) {
  const replicas::ReplicaTerms& terms = job.replicas;
  if (!terms.are_local() || terms.outer.type != replicas::OuterType::Nesterov ||
      !has_running_statistics(training))
    return {};
  return {
      to_string(job.where("sync")) +
      ": the replicas' running statistics (BatchNorm's) are averaged, and `outer: {type: nesterov}` carries "
      "the weights further than that: evaluations come out worse than what was learnt; with `outer: {type: "
      "average}` both are of the same weights"};
}

}  // namespace weft::train
