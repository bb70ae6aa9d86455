// What a finished job gave, brought from the broker: trained tensors, predictions, the submitted model.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/client.h"
#include "configs/job.h"
#include "dag/graph.h"
#include "dag/onnx/export.h"
#include "data/npz_writer.h"
#include "proto/messages.h"
#include "storage/outer_record.h"

namespace weft::cli {

// `adapter`: the folder of a job with adapters, which are merged into the model; empty: it has none.
struct FetchedFiles : onnx::WrittenFiles {
  std::filesystem::path adapter{};
};
// Brings the trained parameters and running statistics, and writes them in place of the model's: a piece of a
// tensor at a time is held, what has come lies in a temporary folder until all has. Errors as of
// train::write_merged, and of the connection.
Result<FetchedFiles> fetch_trained(Client& client, const proto::JobResult& result,
                                   const std::filesystem::path& model, const std::filesystem::path& output,
                                   const configs::OutputForm& form = {});

// What `--merged TYPE` means: how weights are written that adapters were merged into. Empty: as a job that
// says nothing.
configs::OutputForm merged_as(const std::string& type);
std::vector<std::string> merged_types();  // that it takes

// Writes what a job has learnt, whose trained model is at `trained`, as a file of tensors
// (train/weights_file.h), and says so.
Status write_also(const proto::JobResult& result, const std::filesystem::path& trained,
                  const std::filesystem::path& weights);

// Which run the record of its rounds is of, which travelled with the submitted model: of local steps, and not
// where an earlier version submitted it.
Result<std::optional<storage::OuterRecord>> record_of(const proto::JobResult& result);

// Puts the submitted model together in `folder`, with what it keeps outside beside it, and says where it is.
// NotFound when the result has none.
Result<std::filesystem::path> fetch_model(Client& client, const proto::JobResult& result,
                                          const std::filesystem::path& folder);

// One output of a prediction: where the rows of its microbatches are.
struct PredictedOutput {
  std::string name;
  dag::TensorSpec spec;          // of all samples: the first axis counts them
  std::vector<Digest> blobs;     // by microbatch
  uint64_t microbatch_size = 0;  // bytes of each blob
};
// Puts the reports in order: outputs as `order` names them, others after them by name. Corrupted when a
// microbatch is missing, shapes differ between microbatches, or there are fewer rows than samples.
Result<std::vector<PredictedOutput>> arrange_predictions(const proto::JobResult& result,
                                                         const std::vector<std::string>& order);
// Writes an npz, whole or not at all, with one array for each output in sample order, padding cut off.
Status fetch_predictions(Client& client, const proto::JobResult& result,
                         const std::vector<std::string>& order, const std::filesystem::path& path);

}  // namespace weft::cli
