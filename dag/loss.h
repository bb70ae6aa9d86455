// Attaches what a job asks for to an imported model: the loss that training differentiates, and the sums that
// evaluation adds up.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::dag {

enum class LossType { CrossEntropy, Mse, L1, BceWithLogits, Output };

// One term of a job's loss.
struct LossSpec {
  LossType type = LossType::CrossEntropy;
  std::string prediction;       // the model output compared: logits or output; for Output the loss itself
  std::string target;           // the data column; empty for Output
  std::optional<int64_t> axis;  // CrossEntropy's class axis, where the shapes leave a choice
  std::optional<int64_t> ignore_index;
  double weight = 1;  // of this term in the sum
};

// Names of the graph inputs that the functions below add. Targets after the first are numbered from 1:
// "loss.target.1"; terms with the same target share one input.
inline constexpr std::string_view kTargetInput = "loss.target";
inline constexpr std::string_view kMaskInput = "loss.mask";
// By term, the input that its target comes through; empty for LossType::Output.
std::vector<std::string> target_inputs(std::span<const LossSpec> losses);

// `model` with an input for each target, of the spec that `targets` gives by term, and an output of role
// Loss: the weighted sum of the terms, each the mean over the microbatch (over counted labels for
// CrossEntropy; over all elements for the others, as PyTorch's reduction="mean"). Predictions are no longer
// outputs. The target of LossType::Output is ignored. Errors: NotFound (no such output; the message lists
// those there are), InvalidArgument (shapes or dtypes that do not fit, an ambiguous class axis). REQUIRES: at
// least one term.
Result<Graph> attach_training_loss(const Graph& model, std::span<const LossSpec> losses,
                                   std::span<const TensorSpec> targets, const OpTable& table);

// For evaluation, microbatches of `batch` samples whose last one may be padded: adds input kMaskInput, F32
// [batch], 1 for a sample that counts and 0 for padding. Outputs: Loss = sum of the losses of the elements
// that count, Counted = their number, and for CrossEntropy Correct = how many labels are the largest logit.
// With one term of LossType::Output: Loss is the model's own scalar and there is neither mask nor Counted.
// With several terms Loss and Counted have one element a term, not yet weighted, and Correct speaks of the
// first CrossEntropy; a term of LossType::Output counts once for each microbatch without padding.
Result<Graph> attach_evaluation_loss(const Graph& model, std::span<const LossSpec> losses,
                                     std::span<const TensorSpec> targets, int64_t batch,
                                     const OpTable& table);

// The class axis of logits against labels: the axis that the labels lack. InvalidArgument when none or
// several fit.
Result<int64_t> class_axis(const Shape& logits, const Shape& labels);

}  // namespace weft::dag
