// What a job's `init` says: weights from a file of tensors in place of those of the model's own file. Which
// tensor goes where is decided from names and shapes alone, and all that does not fit is said at once, before
// anything starts.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "configs/job.h"
#include "dag/onnx/export.h"
#include "dag/onnx/model.h"
#include "train/adapters.h"
#include "train/submission.h"

namespace weft::train {

struct InitialPlaces;  // train/initial_places.h

class InitialWeights {
 public:
  // `model`: the job's, of which names and shapes count. The files stay open. Errors, with the place in the
  // job file: what data::TensorFiles says; NotFound for a rule that names nothing; InvalidArgument with every
  // tensor and every initializer that does not fit. REQUIRES: job.init.
  static Result<InitialWeights> open(const configs::Job& job, const onnx::OnnxModel& model);

  // Of the specs that the model has for them. One that was transposed or converted is whole in memory while
  // it is read, of others a piece.
  onnx::TrainedTensors tensors() const;
  // The model with these values, which are all read now.
  Result<onnx::OnnxModel> in(const onnx::OnnxModel& model) const;

  std::string note() const;  // a line: how many tensors came from where
  std::vector<std::string> warnings() const;

 private:
  explicit InitialWeights(std::shared_ptr<const InitialPlaces> places) : places_(std::move(places)) {}
  std::shared_ptr<const InitialPlaces> places_;
};

// The job's model with its first weights. `initial`: where the job says `init`, where they came from.
Result<onnx::OnnxModel> read_job_model(const configs::Job& job, std::optional<InitialWeights>& initial);
// Writes the trained file and its twin (onnx::write_trained): what was not trained is as it was at the begin.
// Adapters are merged, and written beside it (train/adapter_files.h).
Result<onnx::WrittenFiles> write_result(const configs::Job& job, const std::optional<InitialWeights>& initial,
                                        const Adapters& adapters, const dag::Weights& trained);

// Files that a job reads for its `init`, as far as they can be told; none without one.
std::vector<std::filesystem::path> files_of_init(const configs::Job& job);

// A job as it travels: the model is written with its first weights into `folder`, which outlives the job, and
// `init` is gone. Says what was done. REQUIRES: opened.job.init.
struct InitialModel {
  std::string note;
  std::vector<std::string> warnings;
};
Result<InitialModel> write_initial_model(OpenedJob& opened, const std::filesystem::path& folder);

}  // namespace weft::train
