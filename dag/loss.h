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
  std::optional<int64_t> axis;  // CrossEntropy's class axis, where the shapes leave a choice; -1 is the last
  std::optional<int64_t> ignore_index;
  double weight = 1;                       // of this term in the sum
  std::vector<double> class_weights = {};  // CrossEntropy's, by class; empty: 1 each
  double label_smoothing = 0;              // CrossEntropy's, in [0, 1)
  std::string sample_weights = {};         // the data column; empty: 1 each
};

// What the columns of a term hold, with the batch as the first axis. The target of LossType::Output is
// ignored.
struct TermColumns {
  TensorSpec target{};
  std::optional<TensorSpec> sample_weights{};  // set where the term names a column
};

// How much of a microbatch, or of a step, a term's loss is the mean of: the sum of v w[label] over what it
// compares, v being the weight of the sample or of its element, and w the weight of the class.
struct CountRule {
  std::optional<int64_t> ignore_index{};
  std::vector<double> class_weights{};  // by label; empty: 1 each
  // By element of a sample's labels: how often the loss reads it; empty: each once.
  std::vector<uint32_t> reads{};
  int64_t elements = 1;  // of a sample that are compared, where no labels say which of them count
  bool operator==(const CountRule&) const = default;
};
// A graph input, F32 and one number, that holds what a term comes to in the whole step by `rule`, or 1 where
// that is 0: the same number for all microbatches of the step. Whoever reads the data computes it
// (data/divisor.h), so that no stage has to know of more than its microbatch.
struct Divisor {
  std::string input{};
  std::string labels{};          // the graph input that the labels come through; empty: there are none
  std::string sample_weights{};  // likewise
  CountRule rule{};
};

// Names of the graph inputs that the functions below add. Those after the first are numbered from 1:
// "loss.target.1"; terms with the same column share one input. Divisors are numbered as their terms.
inline constexpr std::string_view kTargetInput = "loss.target";
inline constexpr std::string_view kWeightsInput = "loss.weights";
inline constexpr std::string_view kDivisorInput = "loss.divisor";
inline constexpr std::string_view kMaskInput = "loss.mask";
// By term, the input that its target comes through; empty for LossType::Output. And its sample weights;
// empty where it has none.
std::vector<std::string> target_inputs(std::span<const LossSpec> losses);
std::vector<std::string> weights_inputs(std::span<const LossSpec> losses);

struct TrainingLoss {
  Graph graph;
  std::vector<Divisor> divisors;
  std::vector<std::string> notes;  // for people: what was taken for what
};
// `model` with an input for each target, of the spec that `columns` gives by term, and an output of role
// Loss, whose mean over the `microbatches` of a step is the loss of that step: the weighted sum of the terms,
// each as PyTorch's reduction="mean" over the whole batch (over counted labels for CrossEntropy; over all
// elements for the others). A term that counts unevenly has a Divisor. A term of LossType::Output is the
// mean of its microbatches' values, unless it is itself such a mean over labels that are data
// (dag/counted_mean.h); a note says so. Predictions are no longer outputs. Errors: NotFound (no such output;
// the message lists those there are), InvalidArgument (shapes or dtypes that do not fit, an ambiguous class
// axis, class weights of another number than classes). REQUIRES: at least one term, columns by term,
// microbatches > 0.
Result<TrainingLoss> attach_training_loss(const Graph& model, std::span<const LossSpec> losses,
                                          std::span<const TermColumns> columns, uint32_t microbatches,
                                          const OpTable& table);

// For evaluation, microbatches of `batch` samples whose last one may be padded: adds input kMaskInput, F32
// [batch], 1 for a sample that counts and 0 for padding. Outputs: Loss = sum of the losses of the elements
// that count, Counted = what they are divided by (dag::CountRule), and for CrossEntropy Correct = how many
// labels are the largest logit. With one term of LossType::Output that tells no count: Loss is the model's
// own scalar and there is neither mask nor Counted. With several terms Loss and Counted have one element a
// term, not yet weighted, and Correct speaks of the first CrossEntropy; a term of LossType::Output counts
// once for each microbatch without padding. Where that CrossEntropy has weights, of classes or samples,
// Counted has one element more: how many labels Correct is a part of (LossTerms::counts_hits_apart).
Result<Graph> attach_evaluation_loss(const Graph& model, std::span<const LossSpec> losses,
                                     std::span<const TermColumns> columns, int64_t batch,
                                     const OpTable& table);

// The class axis of logits against labels: the axis that the labels lack, and never the first, which is the
// samples'. InvalidArgument when none or several fit.
Result<int64_t> class_axis(const Shape& logits, const Shape& labels);

}  // namespace weft::dag
