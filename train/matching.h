// A model's inputs and targets matched with the columns of a data set: which shape each has under a
// microbatch, which column or value feeds it, what is converted on the way. Where the batch stands on another
// axis than the first (dag/onnx/batch_axis.h) the column still holds samples on its first, and the import
// transposes. What does not fit is said with the job file's line and what to do.
//
// A column of another type is taken where its numbers stay what they are (data/convert.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "configs/job.h"
#include "dag/graph.h"
#include "dag/onnx/model.h"
#include "data/dataset.h"
#include "data/loader.h"

namespace weft::train {

struct Matching {
  std::map<std::string, dag::Shape> shapes;  // with the batch first
  std::vector<data::Feed> feeds;
  std::map<std::string, dag::Tensor> values;  // of inputs that are the same for every sample
  std::vector<std::string> warnings;
};

// The inputs of the model. Errors: NotFound for a column that is not there, InvalidArgument for what does not
// fit.
Result<Matching> match_inputs(const configs::Job& job, const onnx::OnnxModel& model,
                              const data::Dataset& dataset);

// The values that the job gives to inputs, for who has no data. `batch` is what the batch's axis becomes.
Result<std::map<std::string, dag::Tensor>> input_values(const configs::Job& job, const onnx::OnnxModel& model,
                                                        int64_t batch);

// The batch that the file fixes, of the inputs that data feed; nothing where it leaves it open.
// InvalidArgument where inputs disagree.
Result<std::optional<uint32_t>> fixed_batch(const configs::Job& job, const onnx::OnnxModel& model);

// The column by its name. NotFound lists what the data has.
Result<size_t> find_column(const configs::Job& job, const data::Dataset& dataset, std::string_view path,
                           const std::string& name);

// What the graph takes of a sample of the target of a loss over `prediction`: labels as int64, and without an
// axis of length 1 that the logits do not have; other targets as floats like the prediction.
dag::TensorSpec target_sample(const dag::LossSpec& loss, const dag::TensorSpec& prediction,
                              const dag::TensorSpec& column);

}  // namespace weft::train
