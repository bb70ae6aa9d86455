// Who made which steps of a job whose replicas make local steps, where `weft fetch` brings what it learnt:
// the record that `weft submit` writes when it stays (train/outer_record.h). Which run it is of travelled
// with the model, and its rounds follow from the plans among the job's events.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/broker_call.h"
#include "proto/messages.h"
#include "storage/outer_record.h"

namespace weft::cli {

// The record of what `result` has, or why there is none, for people; neither: no replicas of the job make
// local steps.
struct FetchedRecord {
  std::optional<storage::OuterRecord> record{};
  std::string why_none{};
};
FetchedRecord fetched_record(std::optional<storage::OuterRecord> heading,
                             const std::vector<replicas::Begun>& plans, uint64_t steps);

// Writes it beside `output`, and says so or why not. Errors: of the connection, and what the disk says.
struct RecordWritten {
  std::filesystem::path path{};  // empty: there is none
  std::string why_none{};        // as above
};
Result<RecordWritten> write_fetched_record(BrokerCall& session, const proto::JobResult& result,
                                           const std::filesystem::path& output);

}  // namespace weft::cli
