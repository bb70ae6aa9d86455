// One term of a loss as ops: what it compares, by element, and what that is made of. Internal to dag: loss.cc
// adds terms up for training, loss_evaluation.cc for evaluation.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "dag/autodiff.h"
#include "dag/graph.h"
#include "dag/loss.h"

namespace weft::dag {

// A copy of the model whose outputs are only those that training or evaluation keeps.
GraphCopy copy_model(const Graph& model, const OpTable& table, bool keep_state_updates);

// The outputs compared, by term, each a float. NotFound, which lists those there are; InvalidArgument.
Result<std::vector<ValueId>> find_predictions(const Graph& model, std::span<const LossSpec> losses);
Status check_scalar(const LossSpec& loss, const TensorSpec& spec);  // of LossType::Output

// Small graphs over a builder: over all elements, as one number, as another type.
ValueId reduce_all(GraphBuilder& builder, OpKind kind, ValueId value);
ValueId as_scalar(GraphBuilder& builder, ValueId value);
ValueId as(GraphBuilder& builder, DType dtype, ValueId value);
// Losses are computed in float32, or as wide as what is compared.
ValueId as_wide(GraphBuilder& builder, ValueId value);
// An invalid operand is 1.
ValueId product(GraphBuilder& builder, ValueId a, ValueId b);

// The graph inputs of each term's columns.
struct TermInputs {
  std::vector<ValueId> targets, weights;

  TermInputs(GraphBuilder& builder, std::span<const LossSpec> losses, std::span<const TermColumns> columns);
};

// What a term compares, before anything is added up: by element, as wide as the loss.
struct Compared {
  ValueId each{};     // the loss
  ValueId counts{};   // 1 or 0: whether a label counts; invalid: all do
  ValueId weights{};  // of the element's class and sample, and 0 where it does not count; invalid: all 1
  ValueId hits{};     // CrossEntropy: 1 where the largest logit is the label's
  CountRule rule{};
  std::string weights_input{};  // the graph input of the sample weights; empty: there are none
};

// Of mse, l1 and bce_with_logits. `notes`: for people. InvalidArgument: shapes that do not fit.
Result<Compared> compare_elements(GraphBuilder& builder, const LossSpec& loss, ValueId prediction,
                                  ValueId target, std::vector<std::string>& notes);

// Logits and labels as the op takes them, and what it is to do with them.
struct Classes {
  ValueId logits{}, labels{}, class_weights{};
  int64_t axis = 0, count = 0;
  Attributes attributes(std::string reduction, const LossSpec& loss) const {
    Attributes attributes{{Attr::Axis, axis}, {Attr::Reduction, std::move(reduction)}};
    if (loss.ignore_index) attributes.set(Attr::IgnoreIndex, *loss.ignore_index);
    return attributes;
  }
  std::vector<ValueId> operands() const {
    if (!class_weights.valid()) return {logits, labels};
    return {logits, labels, class_weights};
  }
};

Result<Classes> classes_of(GraphBuilder& builder, const LossSpec& loss, ValueId prediction, ValueId labels);
// 1 where the label counts, and 0 where it is the ignored one; invalid: all count.
ValueId counted_labels(GraphBuilder& builder, ValueId labels, std::optional<int64_t> ignored, DType dtype);
// w[label], and 0 for an ignored one; what only some do is left out.
ValueId label_weights(GraphBuilder& builder, ValueId labels, std::optional<int64_t> ignored,
                      ValueId class_weights, ValueId counts);
// (1 - e) w[label] nll + e / C sum of w[c] (-log p[c]), by label.
Result<Compared> compare_classes(GraphBuilder& builder, const LossSpec& loss, const Classes& classes,
                                 bool for_evaluation);

// A `column` that is not there changes nothing.
Status apply_sample_weights(GraphBuilder& builder, const LossSpec& loss, ValueId column, Compared& compared);

}  // namespace weft::dag
