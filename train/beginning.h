// A checkpoint on its user's disk with which a submitted job begins: `weft submit --resume`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "configs/job.h"
#include "storage/manifest.h"
#include "storage/package.h"
#include "train/prepare.h"

namespace weft::train {

struct Beginning {
  uint64_t step = 0, skipped_steps = 0;
  // Where the job has as many replicas with local steps as the checkpoint: of each, steps without an update.
  std::vector<uint64_t> replica_skipped_steps;
  std::vector<storage::TensorRecord> tensors;   // what training `Prepared` goes on from, and no more
  std::map<Digest, storage::BlobSource> blobs;  // their bytes
  std::vector<std::string> warnings;
};

struct ResumeOptions {
  std::filesystem::path checkpoint;  // its folder or manifest; empty: from the start
  bool other_data = false;           // also with data of other bytes than it was made with
};

// Reads and checks every blob. `steps`: of the whole run. Errors: as storage::load_checkpoint;
// InvalidArgument where it is of another job, or nothing is left to train.
Result<Beginning> read_beginning(const ResumeOptions& options, const configs::Job& job,
                                 const Prepared& training, uint64_t steps);

}  // namespace weft::train
