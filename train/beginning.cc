#include "train/beginning.h"

#include <algorithm>

#include "dag/slots.h"
#include "storage/checkpoint.h"
#include "storage/sha256.h"
#include "storage/text_file.h"
#include "train/replicas_in_turn.h"
#include "train/resumption.h"

namespace weft::train {
namespace {
const dag::TensorSpec* spec_in(const dag::Graph& graph, const std::string& name) {
  for (const dag::Initializer& initializer : graph.initializers())
    if (initializer.name == name) return &graph.spec(initializer.value);
  return nullptr;
}

bool is_part(const dag::StateKey& key) {
  return key.slot == dag::StateSlot::ReturnResidue && key.replica > 0;
}

Status check_shape(const storage::TensorRecord& record, const dag::Graph& graph, dag::SlotType slots,
                   const std::string& manifest) {
  const dag::TensorSpec* spec = spec_in(graph, record.key.name);
  if (spec != nullptr && is_part(record.key) && record.spec.dtype == spec->dtype &&
      record.spec.shape.size() == 1 && record.spec.element_count() <= spec->element_count())
    return {};
  if (spec == nullptr || spec_of_state(record.key.slot, *spec, slots) != record.spec)
    return fail(ErrorCode::InvalidArgument, manifest + " has '" + record.key.name + "' as " +
                                                to_string(record.spec) + ", the model as " +
                                                (spec == nullptr ? "nothing" : to_string(*spec)));
  return {};
}

// What training goes on from. Of replicas with local steps each that made the checkpoint has slots of its
// own, and further ones those of the first; what was owed, or moves on from agreement to agreement, may have
// been nothing yet.
struct Wanted {
  std::vector<dag::StateKey> needed{}, kept{};  // kept: if it is there
};
Wanted wanted_of(const configs::Job& job, const dag::Graph& graph, uint32_t replicas) {
  Wanted wanted;
  const bool owes = job.replicas.codec.kind != compress::Kind::Dense;
  const bool has_momentum = job.replicas.outer.type == replicas::OuterType::Nesterov;
  const auto keep = [&](const dag::StateKey& weight, dag::StateSlot slot, uint32_t replica) {
    wanted.kept.push_back({weight.owner, weight.name, slot, replica});
  };
  for (const dag::StateKey& key : dag::trained_state(graph, job.optimizer)) {
    const bool is_weight = dag::is_weight(key.slot);
    for (uint32_t replica = 0; replica < (is_weight ? 1 : replicas); ++replica)
      wanted.needed.push_back({key.owner, key.name, key.slot, replica});
    if (!job.replicas.are_local() || key.slot != dag::StateSlot::Value) continue;
    if (has_momentum) keep(key, dag::StateSlot::OuterMomentum, 0);
    if (owes) keep(key, dag::StateSlot::ReturnResidue, 0);
    for (uint32_t replica = 0; owes && replica < replicas; ++replica)
      keep(key, dag::StateSlot::Residue, replica);
  }
  return wanted;
}

// Whose slots and counts of updates the job's replicas go on with; how many of the checkpoint's it needs.
uint32_t take_updates(const configs::Job& job, const storage::Checkpoint& checkpoint,
                      const std::string& manifest, Beginning& beginning) {
  const auto& updates = checkpoint.replica_updates;
  const size_t then = std::max<size_t>(updates.size(), 1);
  const std::string has = manifest + " has the optimizer's state of " + std::to_string(then) +
                          (then == 1 ? " replica" : " replicas");
  if (!updates.empty()) beginning.skipped_steps = beginning.step - updates.front();  // as the slots have seen
  if (!job.replicas.are_local()) {
    if (!updates.empty()) beginning.warnings.push_back(has + ": this run goes on with that of the first");
    return 1;
  }
  const size_t now = job.may_grow() ? then : job.replicas.count;
  if (then != now) beginning.warnings.push_back(manifest + ": " + describe_other_replicas(then, now));
  for (size_t replica = 0; replica < std::min(updates.size(), now); ++replica)
    beginning.replica_skipped_steps.push_back(beginning.step - updates[replica]);
  return static_cast<uint32_t>(std::min(then, now));
}

}  // namespace

Result<Beginning> read_beginning(const ResumeOptions& options, const configs::Job& job,
                                 const Prepared& training, uint64_t steps) {
  storage::Files files;
  WEFT_TRY(const storage::LoadReport loaded, storage::load_checkpoint(options.checkpoint, files));
  const std::string manifest = loaded.manifest.string();
  Beginning beginning;
  for (const Error& error : loaded.passed_over)
    beginning.warnings.push_back("passed over a damaged checkpoint: " + error.message);
  WEFT_TRY(const auto told,
           check_continuation({job, storage::sha256_hex(training.identity), steps, options.other_data},
                              loaded.checkpoint, manifest, [&] {
                                return ReadHashes{hash_of_data(*job.train).value_or(""), ""};
                              }));
  beginning.warnings.insert(beginning.warnings.end(), told.begin(), told.end());
  beginning.step = loaded.checkpoint.step;
  beginning.skipped_steps = loaded.checkpoint.skipped_steps;
  const uint32_t replicas = take_updates(job, loaded.checkpoint, manifest, beginning);
  if (beginning.step >= steps)
    return fail(ErrorCode::InvalidArgument,
                manifest + " is after step " + std::to_string(beginning.step) +
                    ", the job's last: `weft local --resume` writes what it holds");

  // Its blobs, by the names that the manifest gives them.
  WEFT_TRY(const std::string text, storage::read_text(loaded.manifest, storage::kManifestSizeMax));
  WEFT_TRY(const storage::Manifest named, storage::parse_manifest(text));
  std::map<dag::StateKey, const storage::TensorRecord*> records;
  for (const storage::TensorRecord& record : named.tensors) records[record.key] = &record;
  Wanted wanted = wanted_of(job, training.graph, replicas);
  for (const dag::StateKey& key : wanted.needed)
    if (!records.contains(key))
      return fail(ErrorCode::InvalidArgument, manifest + " holds no " + std::string(to_string(key.slot)) +
                                                  " of '" + key.name +
                                                  "': it is of another job or optimizer");
  wanted.needed.insert(wanted.needed.end(), wanted.kept.begin(), wanted.kept.end());
  for (const dag::StateKey& key : wanted.kept)  // or its parts, where it is not whole
    for (dag::StateKey part = key; key.slot == dag::StateSlot::ReturnResidue;) {
      ++part.replica;
      if (!records.contains(part)) break;
      wanted.needed.push_back(part);
    }
  for (const dag::StateKey& key : wanted.needed) {
    const auto at = records.find(key);
    if (at == records.end()) continue;
    const storage::TensorRecord& record = *at->second;
    WEFT_TRY_STATUS(check_shape(record, training.graph, job.optimizer.slots, manifest));
    const auto size = static_cast<uint64_t>(record.spec.bytes().value);
    // The manifest's reader has seen that it is one.
    beginning.blobs[digest_from_hex(record.sha256).value()] = {
        loaded.manifest.parent_path() / "blobs" / record.sha256, {0, size}};
    beginning.tensors.push_back(record);
  }
  return beginning;
}

}  // namespace weft::train
