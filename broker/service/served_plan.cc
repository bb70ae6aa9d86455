#include "broker/service/served_plan.h"

#include "broker/place/serving_assembly.h"
#include "broker/pool/candidates.h"
#include "broker/service/random_secret.h"
#include "storage/sha256.h"
#include "train/serving_request.h"

namespace weft::broker {
namespace {

// Equal for equal weights on devices of equal numerics.
std::string fingerprint_of(const JobContext& context, const PlannedRun& run) {
  storage::Sha256 hash;
  for (const auto& [name, tensor] : context.initial) {
    if (!context.served->model.graph->find_initializer(name)) continue;  // no text hangs on who guesses
    hash.update(name);
    hash.update(std::as_bytes(std::span(tensor.sha256.bytes)));
  }
  for (const PlannedStage& stage : run.stages) hash.update(stage.assignment->device_class.fingerprint);
  return "weft-" + hash.hex().substr(0, 16) + "-dense";
}

std::optional<proto::ServeDraft> draft_of(const JobContext& context) {
  const configs::DraftTerms& terms = context.job.serve->draft;
  if (terms.kind == plan::DraftKind::None) return std::nullopt;
  proto::ServeDraft draft{.kind = terms.kind, .right = terms.right};
  if (!context.served->draft) return draft;
  const train::DecoderModel& model = context.served->draft->model;
  draft.graph = model.graph;
  draft.tokens = model.tokens;
  draft.logits = model.logits;
  return draft;
}

ServingTerms terms_of_served(const JobContext& context, const plan::ServingRequest& asked) {
  const train::ServedDecoder& served = *context.served;
  const auto initializers = served.model.graph->initializers();
  ServingTerms terms{.model = context.served_model,
                     .graph = served.model.graph,
                     .tokens = served.model.tokens,
                     .logits = served.model.logits,
                     .rows_max = context.job.serve->rows_max,
                     .equal_bits_required = context.job.placement.equal_bits == plan::EqualBits::Require,
                     .initial = &context.initial,
                     .weights = {},
                     .weights_everywhere = served.parts->read_weights(),
                     .draft = draft_of(context)};
  for (const plan::ServedPart& part : asked.parts) {
    std::vector<std::string>& names = terms.weights.emplace_back();
    for (const uint32_t weight : part.weights) names.push_back(initializers[weight].name);
  }
  return terms;
}

}  // namespace

Result<std::shared_ptr<const PlannedRun>> plan_served(const JobContext& context,
                                                      const StartPlanning& request) {
  WEFT_TRY(
      const plan::ServingRequest asked,
      train::serving_request(context.job, *context.served, request.cluster, classes_of(request.candidates)));
  WEFT_TRY(const plan::ServingPlan plan, plan::plan_serving(asked));
  const auto run = assemble_serving(request, terms_of_served(context, asked), plan, random_secret);
  run->served.fingerprint = fingerprint_of(context, *run);
  return std::shared_ptr<const PlannedRun>(run);
}

}  // namespace weft::broker
