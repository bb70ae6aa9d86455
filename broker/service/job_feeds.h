// What the broker's own threads know of the jobs that go on: where their data is and how it feeds the stages,
// and which blobs hold the values that they were submitted with. A process of the job's own has read the
// model (plan_worker.h).
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "data/data_spec.h"
#include "data/loader.h"
#include "proto/planning.h"
#include "train/prepare.h"

namespace weft::broker {

// Of a compressed data set, which a broker reads microbatches from: bytes that it may take in memory.
inline constexpr uint64_t kDataInMemoryMax = uint64_t{1} << 30;

struct JobFeed {
  struct Program {
    data::DataSpec data{};
    std::vector<data::Feed> feeds{};
    std::vector<train::IntegerBounds> bounds{};
    std::vector<data::Divisor> divisors{};
  };
  uint64_t steps = 0;  // 0: prediction
  uint32_t batch_size = 1, microbatch_size = 1;
  bool shuffle = true;
  uint64_t seed = 0;
  size_t loss_terms = 0;
  std::map<proto::ProgramKind, Program> programs{};
  std::map<std::string, proto::TensorReference> initial{};  // by initializer: the submitted value
};

// `folder`: where the job's files are. Errors: Corrupted for paths that do not lie in it.
Result<std::shared_ptr<const JobFeed>> from_message(const proto::JobFeed& feed,
                                                    const std::filesystem::path& folder);

// By job; any thread.
class JobFeeds {
 public:
  std::shared_ptr<const JobFeed> find(proto::JobNumber job) const {
    const MutexLock lock(mutex_);
    const auto at = feeds_.find(job);
    return at == feeds_.end() ? nullptr : at->second;
  }
  void set(proto::JobNumber job, std::shared_ptr<const JobFeed> feed) {
    const MutexLock lock(mutex_);
    feeds_[job] = std::move(feed);
  }
  void erase(proto::JobNumber job) {
    const MutexLock lock(mutex_);
    feeds_.erase(job);
  }

 private:
  mutable Mutex mutex_;
  std::map<proto::JobNumber, std::shared_ptr<const JobFeed>> feeds_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::broker
