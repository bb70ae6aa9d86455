#include "broker/place/serving_assembly.h"

#include <algorithm>
#include <set>

#include "broker/pool/candidates.h"

namespace weft::broker {
namespace {

proto::ServeProgram program_of(const ServingTerms& terms, const plan::ServingPlan& plan, size_t stage) {
  proto::ServeProgram program{.graph = terms.graph,
                              .tokens = terms.tokens,
                              .logits = terms.logits,
                              .ranges = {},
                              .rows_max = terms.rows_max,
                              .passes_max = plan.passes,
                              .sequences_max = terms.model.sequences_max,
                              .positions_max = plan.positions_max,
                              .kept_positions_max = plan.kept_positions_max};
  if (stage == 0) program.draft = terms.draft;
  if (program.draft) program.draft->passes_shared = plan.passes_shared;
  for (const plan::PartSpan& span : plan.stages[stage].parts)
    program.ranges.push_back({span.begin, span.end});
  return program;
}

std::vector<proto::TensorReference> tensors_of(const ServingTerms& terms, const plan::ServingPlan& plan,
                                               size_t number) {
  const plan::ServingStage& stage = plan.stages[number];
  std::set<std::string> names(terms.weights_everywhere.begin(), terms.weights_everywhere.end());
  if (number == 0 && terms.draft && terms.draft->graph)
    for (const dag::Initializer& initializer : terms.draft->graph->initializers())
      names.insert(proto::draft_name(initializer.name));
  for (const plan::PartSpan& span : stage.parts)
    for (uint32_t part = span.begin; part < span.end; ++part)
      names.insert(terms.weights[part].begin(), terms.weights[part].end());
  std::vector<proto::TensorReference> tensors;
  tensors.reserve(names.size());
  for (const std::string& name : names) tensors.push_back(terms.initial->at(name));
  return tensors;
}

void describe(const ServingTerms& terms, const plan::ServingPlan& plan, PlannedRun& run) {
  run.training.steps = 0;
  run.training.batch_size = run.training.microbatch_size = 1;
  run.equal_bits_required = terms.equal_bits_required;
  run.explanation = plan.explanation;
  run.predicted_step = Duration(static_cast<int64_t>(std::min(plan.token_seconds, 1e6) * 1e9));
  run.served = terms.model;
  run.served.positions_max = plan.positions_max;
}

}  // namespace

std::shared_ptr<PlannedRun> assemble_serving(const StartPlanning& request, const ServingTerms& terms,
                                             const plan::ServingPlan& plan, const DrawSecret& draw_secret) {
  auto run = std::make_shared<PlannedRun>();
  describe(terms, plan, *run);
  run->data_key = draw_secret();
  run->fingerprint = request.candidates[plan.stages.front().device].device.fingerprint;
  std::vector<StageAtPeer> stages;
  for (uint32_t s = 0; s < plan.stages.size(); ++s) {
    const Candidate& peer = request.candidates[plan.stages[s].device];
    auto stage = std::make_shared<proto::AssignStage>();
    stage->run = request.job;
    stage->plan_version = request.plan_version;
    stage->seat = {s};
    stage->stage_count = static_cast<uint32_t>(plan.stages.size());
    stage->training = run->training;
    stage->data_key = run->data_key;
    stage->device_class = peer.device.device_class();
    stage->microbatch_seconds = plan.stages[s].seconds;
    stage->serve = program_of(terms, plan, s);
    stage->tensors = tensors_of(terms, plan, s);
    run->equal_bits = run->equal_bits && peer.device.fingerprint == run->fingerprint;
    stages.push_back({peer, std::move(stage)});
  }
  set_links(stages, *run, draw_secret);
  for (const StageAtPeer& stage : stages)
    run->stages.push_back({{.peer = stage.peer.peer,
                            .parameters = {},
                            .microbatch_seconds = stage.stage->microbatch_seconds,
                            .pinned = false,
                            .owner = {}},
                           stage.stage});
  return run;
}

}  // namespace weft::broker
