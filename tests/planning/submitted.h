// A job as a broker has it: its blobs in a store, its files by name; and peers to plan it for.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "broker/events.h"
#include "broker/service/plan_process.h"
#include "storage/blob_store.h"
#include "tests/support/scratch.h"

namespace weft::test {

class SubmittedJobs {
 public:
  SubmittedJobs();

  const std::filesystem::path& folder() const { return scratch_.folder(); }
  std::filesystem::path jobs() const { return folder() / "jobs"; }
  storage::BlobStore& blobs() { return *blobs_; }
  // One of tests/numerics, as `weft submit` sends it.
  proto::SubmitJob submit(const std::string& name, const std::vector<std::string>& sets = {});
  // Any job file.
  proto::SubmitJob submit_file(const std::filesystem::path& job, const std::vector<std::string>& sets = {});

  // Of the weft that was built beside.
  broker::PlanProcessOptions process_options() const;

 private:
  Scratch scratch_;
  std::unique_ptr<storage::BlobStore> blobs_;
};

// Peers of two classes of devices in two regions.
std::vector<broker::Candidate> candidates(size_t count);
broker::StartPlanning request_for(proto::JobNumber job, proto::SubmitJob submission, size_t peers = 4);

}  // namespace weft::test
