// What the broker's workers know of a job: its files unpacked, its data sets open, its graphs prepared.
// Immutable once made; shared by the planner, which cuts the graphs, and the feeder, which reads the data.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "configs/job.h"
#include "dag/onnx/model.h"
#include "data/dataset.h"
#include "proto/messages.h"
#include "storage/blob_store.h"
#include "train/prepare.h"

namespace weft::broker {

struct JobContext {
  struct Program {
    dag::Graph graph;  // before lowering
    std::vector<data::Feed> feeds;
    std::vector<train::IntegerBounds> bounds;
    std::shared_ptr<const data::Dataset> dataset;
  };
  proto::JobNumber number = 0;
  configs::Job job;               // with a size of microbatches
  std::string microbatch_choice;  // for people; empty where nobody chose
  uint64_t steps = 0;             // 0: prediction
  std::map<proto::ProgramKind, Program> programs;
  std::map<std::string, proto::TensorReference> initial;  // by initializer: the submitted value
  std::vector<std::string> warnings;
};

// Unpacks the submission into `folder` (unless it is there already) and reads its job file. Every path of the
// job must lie in the folder: PermissionDenied otherwise. NotFound for a blob that was not uploaded.
Result<configs::Job> unpack_submission(const proto::SubmitJob& submission, storage::BlobStore& blobs,
                                       const std::filesystem::path& folder);

// A submission read, before its graphs are made.
struct OpenedJob {
  configs::Job job;
  onnx::OnnxModel model;
  std::shared_ptr<const data::Dataset> dataset, test;  // what it trains on or predicts; `test` may be none
};
Result<OpenedJob> open_submission(const proto::SubmitJob& submission, storage::BlobStore& blobs,
                                  const std::filesystem::path& folder);

// The graph that is planned, with microbatches of that size.
Result<train::Prepared> prepare_main(const OpenedJob& opened, uint32_t microbatch_size);

// Imports and differentiates; the weights become blobs.
Result<std::shared_ptr<JobContext>> make_job_context(proto::JobNumber number, const OpenedJob& opened,
                                                     uint32_t microbatch_size, storage::BlobStore& blobs);

// By job; any thread.
class JobContexts {
 public:
  std::shared_ptr<const JobContext> find(proto::JobNumber job) const {
    const MutexLock lock(mutex_);
    const auto at = contexts_.find(job);
    return at == contexts_.end() ? nullptr : at->second;
  }
  void set(proto::JobNumber job, std::shared_ptr<const JobContext> context) {
    const MutexLock lock(mutex_);
    contexts_[job] = std::move(context);
  }
  void erase(proto::JobNumber job) {
    const MutexLock lock(mutex_);
    contexts_.erase(job);
  }

 private:
  mutable Mutex mutex_;
  std::map<proto::JobNumber, std::shared_ptr<const JobContext>> contexts_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::broker
