// From a plan that serves to a run that can be assigned: each stage's parts, its tensors, its links round the
// ring. Pure; what is random is handed in.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "broker/events.h"
#include "broker/place/assembly.h"
#include "plan/serving.h"

namespace weft::broker {

// What the stages are told of the model, and who conducts them.
struct ServingTerms {
  proto::ServedModel model{};  // but for what the plan finds
  std::shared_ptr<const dag::Graph> graph{};
  std::string tokens{}, logits{};
  uint32_t rows_max = 1;
  bool equal_bits_required = false;
  const JobTerms::Initial* initial = nullptr;       // by initializer of the graph
  std::vector<std::vector<std::string>> weights{};  // by part: initializers that it reads
  std::vector<std::string> weights_everywhere{};    // that every stage has
  std::optional<proto::ServeDraft> draft{};         // of the entry
};

// `request` and `terms` need not outlive it.
std::shared_ptr<PlannedRun> assemble_serving(const StartPlanning& request, const ServingTerms& terms,
                                             const plan::ServingPlan& plan, const DrawSecret& draw_secret);

}  // namespace weft::broker
