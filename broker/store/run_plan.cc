#include "broker/store/run_plan.h"

namespace weft::broker {

proto::RunPlan to_message(const PlannedRun& run) {
  proto::RunPlan plan{.stages = {}, .after_step = run.stages.front().assignment->after_step, .terms = run};
  plan.stages.assign(run.stages.begin(), run.stages.end());
  return plan;
}

std::shared_ptr<const PlannedRun> from_message(proto::RunPlan plan,
                                               std::vector<proto::Encoded<proto::AssignStage>> assignments) {
  if (assignments.empty() || assignments.size() != plan.stages.size()) return nullptr;
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
