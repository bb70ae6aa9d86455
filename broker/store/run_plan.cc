#include "broker/store/run_plan.h"

#include <algorithm>

namespace weft::broker {

proto::RunPlan to_message(const PlannedRun& run) {
  proto::RunPlan plan{.stages = {}, .after_step = run.stages.front().assignment->after_step, .terms = run};
  plan.stages.assign(run.stages.begin(), run.stages.end());
  return plan;
}

namespace {
// Of replicas every stage was told the same as the run.
bool are_of_one_run(const proto::RunTerms& terms,
                    const std::vector<proto::Encoded<proto::AssignStage>>& assignments) {
  const std::vector<uint32_t>& ranges = terms.exact_ranges;
  if (!ranges.empty() && !std::all_of(assignments.begin(), assignments.end(), [&](const auto& assignment) {
        return assignment->exact && assignment->exact->ranges == ranges &&
               assignment->exact->codec == assignments.front()->exact->codec &&
               shares_slots(*assignment) == shares_slots(*assignments.front());
      }))
    return false;
  const auto& local = terms.local_steps;
  return !local || std::all_of(assignments.begin(), assignments.end(), [&](const auto& assignment) {
    return assignment->local && assignment->local->steps == *local &&
           assignment->training.steps == terms.training.steps &&
           assignment->after_step == assignments.front()->after_step;
  });
}
}  // namespace

std::shared_ptr<const PlannedRun> from_message(proto::RunPlan plan,
                                               std::vector<proto::Encoded<proto::AssignStage>> assignments) {
  if (assignments.empty() || assignments.size() != plan.stages.size() ||
      !are_of_one_run(plan.terms, assignments))
    return nullptr;
  auto run = std::make_shared<PlannedRun>(PlannedRun{std::move(plan.terms), {}});
  const dag::TrainingSpec lengths = std::exchange(run->training, assignments.front()->training);
  run->training.steps = lengths.steps;
  run->training.batch_size = lengths.batch_size;
  run->training.microbatch_size = lengths.microbatch_size;
  for (size_t s = 0; s < assignments.size(); ++s)
    run->stages.push_back({std::move(plan.stages[s]), std::move(assignments[s])});
  return run;
}

}  // namespace weft::broker
