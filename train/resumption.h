// What a run is made with beside its graph. Checkpoints say it, so that whoever goes on from one with another
// job is told what differs, and is stopped where the data are others.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "configs/job.h"
#include "storage/checkpoint.h"
#include "storage/manifest.h"

namespace weft::train {

// SHA-256 of the data that are trained on. Reads them through.
Result<std::string> hash_of_data(const data::DataSpec& spec);

// What a run reads and no checkpoint holds. Empty: not known.
struct ReadHashes {
  std::string data;       // hash_of_data()
  std::string untrained;  // of the weights that are not trained
};
// `steps`: of the whole run; `step`: the last one that was made.
storage::RunSettings settings_of(const configs::Job& job, uint64_t steps, const ReadHashes& read,
                                 uint64_t step);
// Also where those of the checkpoint are not known.
bool has_same_data(const storage::RunSettings& then, const storage::RunSettings& now);

// The run that is to go on from a checkpoint.
struct Continuation {
  const configs::Job& job;  // its size of microbatches settled
  std::string graph_hash;   // SHA-256 of Prepared::identity
  uint64_t steps = 0;       // in all
  bool takes_other_data = false;
};
// Whether it may, and what it is told. `read` is asked where the checkpoint says what it was made with.
// `manifest` names it in messages. InvalidArgument: it is of another model, batch or data, or nothing is
// left; or its optimizer's slots are of another type.
Result<std::vector<std::string>> check_continuation(const Continuation& run,
                                                    const storage::Checkpoint& checkpoint,
                                                    const std::string& manifest,
                                                    const std::function<ReadHashes()>& read);

// What differs, in words: "`seed` was 3 and is 4", then, where that depends on it, which rate follows. Empty:
// nothing does; what either does not know is not compared. `next_rate`: of the first step that is made now.
std::string describe_changes(const storage::RunSettings& then, const storage::RunSettings& now,
                             double next_rate);

}  // namespace weft::train
