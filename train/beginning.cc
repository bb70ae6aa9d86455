#include "train/beginning.h"

#include "storage/checkpoint.h"
#include "storage/sha256.h"
#include "storage/text_file.h"
#include "train/resumption.h"

namespace weft::train {
namespace {
const dag::TensorSpec* spec_in(const dag::Graph& graph, const std::string& name) {
  for (const dag::Initializer& initializer : graph.initializers())
    if (initializer.name == name) return &graph.spec(initializer.value);
  return nullptr;
}

Status check_shape(const storage::TensorRecord& record, const dag::Graph& graph,
                   const std::string& manifest) {
  const dag::TensorSpec* spec = spec_in(graph, record.key.name);
  if (spec == nullptr || (dag::is_weight(record.key.slot) && *spec != record.spec))
    return fail(ErrorCode::InvalidArgument, manifest + " has '" + record.key.name + "' as " +
                                                to_string(record.spec) + ", the model as " +
                                                (spec == nullptr ? "nothing" : to_string(*spec)));
  return {};
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
  if (const auto& updates = loaded.checkpoint.replica_updates; !updates.empty()) {
    beginning.skipped_steps = beginning.step - updates.front();  // as many updates as the slots have seen
    beginning.warnings.push_back(manifest + " has the optimizer's state of " +
                                 std::to_string(updates.size()) +
                                 " replicas: this run goes on with that of the first");
  }
  if (beginning.step >= steps)
    return fail(ErrorCode::InvalidArgument,
                manifest + " is after step " + std::to_string(beginning.step) +
                    ", the job's last: `weft local --resume` writes what it holds");

  // Its blobs, by the names that the manifest gives them.
  WEFT_TRY(const std::string text, storage::read_text(loaded.manifest, storage::kManifestSizeMax));
  WEFT_TRY(const storage::Manifest named, storage::parse_manifest(text));
  std::map<dag::StateKey, const storage::TensorRecord*> records;
  for (const storage::TensorRecord& record : named.tensors) records[record.key] = &record;
  for (const dag::StateKey& key : dag::trained_state(training.graph, job.optimizer)) {
    const auto at = records.find(key);
    if (at == records.end())
      return fail(ErrorCode::InvalidArgument, manifest + " holds no " + std::string(to_string(key.slot)) +
                                                  " of '" + key.name +
                                                  "': it is of another job or optimizer");
    const storage::TensorRecord& record = *at->second;
    WEFT_TRY_STATUS(check_shape(record, training.graph, manifest));
    const auto size = static_cast<uint64_t>(record.spec.bytes().value);
    // The manifest's reader has seen that it is one.
    beginning.blobs[digest_from_hex(record.sha256).value()] = {
        loaded.manifest.parent_path() / "blobs" / record.sha256, {0, size}};
    beginning.tensors.push_back(record);
  }
  return beginning;
}

}  // namespace weft::train
