#include "broker/service/place_again.h"

#include <algorithm>
#include <map>
#include <set>

#include "broker/service/routes.h"
#include "dag/lower.h"
#include "dag/op_table.h"
#include "dag/split.h"
#include "plan/copies.h"

namespace weft::broker {

namespace {

using Saved = std::map<dag::StateKey, const proto::TensorReference*>;

// What a stage begins with after `saved`: what is trained as saved there; what is not, and what no checkpoint
// holds, as it was assigned before. From the start: as submitted, which the plan before says if it began
// there, and else the job's feed.
Result<std::vector<proto::TensorReference>> tensors_again(const proto::AssignStage& before,
                                                          const Saved& saved, const JobFeed* feed) {
  std::vector<proto::TensorReference> tensors;
  std::set<std::string> named;
  for (const proto::TensorReference& tensor : before.tensors) {
    if (!is_weight(tensor.key.slot) || !named.insert(tensor.key.name).second) continue;
    const auto at = find_weight(saved, tensor.key.name);
    if (at != saved.end()) {
      tensors.push_back(*at->second);
    } else if (!saved.empty() || before.after_step == 0) {
      tensors.push_back(tensor);
    } else {
      if (feed == nullptr || !feed->initial.contains(tensor.key.name))
        return fail(ErrorCode::Unavailable, "the job is not at hand");
      tensors.push_back(feed->initial.at(tensor.key.name));
    }
    for (const dag::StateSlot slot : optimizer_slots(before.training.optimizer))
      if (const auto found = saved.find({tensor.key.owner, tensor.key.name, slot}); found != saved.end())
        tensors.push_back(*found->second);
  }
  return tensors;
}

// For a device of another class than the stage was made for.
void make_for(proto::AssignStage& stage, const dag::BackendTraits& traits) {
  for (proto::StageProgram& program : stage.programs) {
    const dag::StageGraph before{.graph = *program.graph,
                                 .segment_of_op = program.segment_of_op,
                                 .segment_count = program.segment_count,
                                 .op_in_whole = {}};
    dag::Relowered after = dag::relower(before, traits, dag::op_table());
    for (auto* ends : {&program.receives, &program.sends})
      for (proto::EdgeEnd& end : *ends) end.value = after.value_of[end.value.index];
    program.segment_of_op = std::move(after.stage.segment_of_op);
    program.graph = std::make_shared<const dag::Graph>(std::move(after.stage.graph));
  }
  stage.device_class.traits = traits;
}

}  // namespace

// Nothing is imported, cut or measured again. A stage whose new device runs other ops is lowered for it by
// itself.
Result<std::shared_ptr<const PlannedRun>> place_again(const StartPlanning& request, const JobFeed* feed,
                                                      const storage::BlobStore& blobs,
                                                      uint64_t replication_rate) {
  auto run = std::make_shared<PlannedRun>(*request.previous);
  run->data_key = random_secret();
  Saved saved;
  if (request.checkpoint)
    for (const auto& tensor : request.checkpoint->tensors) saved[tensor.key] = &tensor;
  if (feed != nullptr && feed->microbatch_size != run->microbatch_size)
    return fail(ErrorCode::Unavailable, "the job's microbatches were chosen anew since");
  std::vector<StageAtPeer> stages;
  for (size_t s = 0; s < run->stages.size(); ++s) {
    PlannedStage& planned = run->stages[s];
    auto stage = std::make_shared<proto::AssignStage>(*planned.assignment);
    planned.peer = request.candidates[request.placed[s]].peer;
    stage->plan_version = request.plan_version;
    stage->after_step = request.checkpoint ? request.checkpoint->step : 0;
    stage->skipped_steps = request.checkpoint ? request.checkpoint->skipped_steps : 0;
    stage->data_key = run->data_key;
    stage->replication_rate = plan::copy_rate(replication_rate, request.cluster, request.placed[s]);
    WEFT_TRY(stage->tensors, tensors_again(*planned.assignment, saved, feed));
    for (const auto& tensor : stage->tensors)
      if (!blobs.has(tensor.sha256))
        return fail(ErrorCode::Unavailable, "the tensor of '" + tensor.key.name + "' was collected");
    const proto::DeviceReport& device = request.candidates[request.placed[s]].device;
    // A plan that was recorded before classes were written down has been placed by them.
    if (!stage->device_class.fingerprint.empty() && stage->device_class.traits != device.traits)
      make_for(*stage, device.traits);
    planned.assignment = stage;
    stages.push_back({request.candidates[request.placed[s]], std::move(stage)});
  }
  run->fingerprint = stages.front().peer.device.fingerprint;
  run->equal_bits = std::all_of(stages.begin(), stages.end(), [&](const StageAtPeer& stage) {
    return stage.peer.device.fingerprint == run->fingerprint;
  });
  set_links(stages, *run);
  return std::shared_ptr<const PlannedRun>(std::move(run));
}

}  // namespace weft::broker
