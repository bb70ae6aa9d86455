// What the process that plans a job knows of it: its graphs prepared. Immutable once made.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "broker/service/job_feeds.h"
#include "broker/service/submitted_model.h"
#include "configs/job.h"
#include "dag/onnx/model.h"
#include "dag/onnx/outline.h"
#include "data/dataset.h"
#include "proto/planning.h"
#include "storage/blob_store.h"
#include "train/decoder.h"
#include "train/prepare.h"

namespace weft::broker {

struct JobContext {
  struct Program {
    dag::Graph graph;  // before lowering
    std::vector<data::Feed> feeds;
    std::vector<train::IntegerBounds> bounds;
    std::vector<data::Divisor> divisors;
    uint64_t sample_count = 0;
  };
  proto::JobNumber number = 0;
  configs::Job job;                   // with a size of microbatches
  std::string microbatch_choice;      // for people; empty where nobody chose
  uint64_t steps = 0;                 // 0: prediction
  std::vector<uint64_t> empty_steps;  // in which nothing counts in the loss
  std::map<proto::ProgramKind, Program> programs;
  // By initializer, those of a model that guesses by draft_name(): the submitted value.
  std::map<std::string, proto::TensorReference> initial;
  std::map<std::string, dag::MadeValue> made;  // by initializer: those of them that no file has
  // Of a job that serves, which has no programs: its model, and what is known of it before a plan.
  std::shared_ptr<const train::ServedDecoder> served;
  proto::ServedModel served_model;
  std::vector<std::string> warnings;
};

// A submission read, before its graphs are made.
struct OpenedJob {
  configs::Job job;
  std::shared_ptr<const SubmittedModel> files;
  onnx::OnnxModel model;  // its large weights are not read
  // What it trains on or predicts; `test` may be none. A job that serves has neither.
  std::shared_ptr<const data::Dataset> dataset, test;
  std::optional<std::string> tokenizer;                 // of a job that serves; nothing: bytes
  std::string tokenizer_path;                           // as the submission names it
  std::shared_ptr<const SubmittedModel> draft_files{};  // of the model that guesses for the one it serves
  std::optional<onnx::OnnxModel> draft{};
};
// Puts its data sets into `folder` and opens its model where its pieces are. Errors: as of check_submission
// and place_files, and what reading says. `blobs` outlives it.
Result<OpenedJob> open_submission(const proto::SubmitJob& submission, const storage::BlobStore& blobs,
                                  const std::filesystem::path& folder);

// The submission's model, with what was decided of its tensors. `read_max`: as of onnx::open_model. Errors:
// InvalidArgument for rows that are not of this model; what reading says.
Result<onnx::OnnxModel> open_submitted(const proto::SubmitJob& submission, SubmittedModel& files,
                                       int64_t read_max = onnx::kOutlineReadMax);

// The tokenizer of a job that serves, nothing where it has none.
Result<std::optional<std::string>> submitted_tokenizer(const proto::SubmitJob& submission,
                                                       const configs::Job& job,
                                                       const storage::BlobStore& blobs,
                                                       const std::filesystem::path& folder);

// The graph that is planned, with microbatches of that size.
Result<train::Prepared> prepare_main(const OpenedJob& opened, uint32_t microbatch_size);

// Imports and differentiates; weights that were read become blobs, the others are some already.
Result<std::shared_ptr<JobContext>> make_job_context(proto::JobNumber number, const OpenedJob& opened,
                                                     uint32_t microbatch_size, storage::BlobStore& blobs);

// What the broker itself keeps of it; paths relative to `folder`, where the files are.
proto::JobFeed feed_of(const JobContext& context, const std::filesystem::path& folder);

}  // namespace weft::broker
