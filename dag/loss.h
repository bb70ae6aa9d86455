// Attaches what a job asks for to an imported model: the loss that training differentiates, and the sums that
// evaluation adds up.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::dag {

enum class LossType { CrossEntropy, Mse, L1, BceWithLogits, Output };

struct LossSpec {
  LossType type = LossType::CrossEntropy;
  std::string prediction;       // the model output compared: logits or output; for Output the loss itself
  std::string target;           // the data column; empty for Output
  std::optional<int64_t> axis;  // CrossEntropy's class axis, where the shapes leave a choice
  std::optional<int64_t> ignore_index;
};

// Names of the graph inputs that the functions below add.
inline constexpr std::string_view kTargetInput = "loss.target";
inline constexpr std::string_view kMaskInput = "loss.mask";

// `model` with an input kTargetInput of spec `target` and an output of role Loss: the mean over the
// microbatch (over counted labels for CrossEntropy; over all elements for the others, as PyTorch's
// reduction="mean"). Predictions are no longer outputs. `target` is ignored for LossType::Output. Errors:
// NotFound (no such output; the message lists those there are), InvalidArgument (shapes or dtypes that do not
// fit, an ambiguous class axis).
Result<Graph> attach_training_loss(const Graph& model, const LossSpec& loss, const TensorSpec& target,
                                   const OpTable& table);

// For evaluation, microbatches of `batch` samples whose last one may be padded: adds input kMaskInput, F32
// [batch], 1 for a sample that counts and 0 for padding. Outputs: Loss = sum of the losses of the elements
// that count, Counted = their number, and for CrossEntropy Correct = how many labels are the largest logit.
// For LossType::Output: Loss is the model's own scalar and there is neither mask nor Counted.
Result<Graph> attach_evaluation_loss(const Graph& model, const LossSpec& loss, const TensorSpec& target,
                                     int64_t batch, const OpTable& table);

// The class axis of logits against labels: the axis that the labels lack. InvalidArgument when none or
// several fit.
Result<int64_t> class_axis(const Shape& logits, const Shape& labels);

}  // namespace weft::dag
