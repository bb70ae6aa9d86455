// Which run a record of rounds is of (storage/outer_record.h): whoever has the job and its record makes the
// same bytes again (`weft local --replay`).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "configs/job.h"
#include "replicas/local_steps.h"
#include "storage/outer_record.h"

namespace weft::train {

// How replicas agree, in the words of a job file.
std::string describe_sync(const replicas::ReplicaTerms& terms);

// A job's, without rounds. `graph_hash`: SHA-256 of Prepared::identity.
storage::OuterRecord record_of(const configs::Job& job, std::string graph_hash);
// The same for a job that a broker had computed by these plans (replicas::rounds_of), `made` steps of it: its
// graph is not known, for the broker may have chosen its microbatch size.
storage::OuterRecord record_of(const configs::Job& job, const std::vector<replicas::Begun>& plans,
                               uint64_t made);
// Beside its output, trained.rounds.jsonl for trained.onnx.
std::filesystem::path record_file(const std::filesystem::path& output);
std::filesystem::path record_file(const configs::Job& job);
// Of a record without rounds that travels with a submitted model whose replicas make local steps: whoever
// fetches what was learnt has no other word of the job, and makes the record of it.
inline constexpr std::string_view kTravellingRecord = "model/weft-rounds.jsonl";
// The record of a run of that job, `steps` long at least. InvalidArgument, naming the file: of another run.
Result<storage::OuterRecord> read_record_of(const std::filesystem::path& path, const configs::Job& job,
                                            const std::string& graph_hash, uint64_t steps);

}  // namespace weft::train
