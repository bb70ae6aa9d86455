#include "dag/loss.h"

#include <algorithm>

#include "base/check.h"
#include "dag/autodiff.h"
#include "dag/counted_mean.h"
#include "dag/loss_term.h"

namespace weft::dag {

Result<int64_t> class_axis(const Shape& logits, const Shape& labels) {
  std::vector<int64_t> fits;
  if (logits.size() == labels.size() + 1)
    for (size_t axis = 1; axis < logits.size(); ++axis) {
      Shape without = logits;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(axis));
      if (without == labels) fits.push_back(static_cast<int64_t>(axis));
    }
  if (fits.size() == 1) return fits[0];
  const std::string shapes = "logits " + to_string(logits) + " and labels " + to_string(labels);
  if (fits.empty())
    return fail(ErrorCode::InvalidArgument,
                shapes +
                    " do not fit: the labels must have the logits' shape without the class axis, "
                    "which is not the first");
  return fail(ErrorCode::InvalidArgument, shapes + " fit in more than one way: say `axis:` in the loss");
}

namespace {

// By term, the input of its column; columns are numbered as they come, terms of one column share its input.
std::vector<std::string> inputs_of(std::string_view kind, std::span<const LossSpec> losses,
                                   std::string LossSpec::*column_of) {
  std::vector<std::string> columns, names;
  for (const LossSpec& loss : losses) {
    const std::string& column = loss.*column_of;
    if (loss.type == LossType::Output || column.empty()) {
      names.emplace_back();
      continue;
    }
    const auto at = std::find(columns.begin(), columns.end(), column);
    const auto number = static_cast<size_t>(at - columns.begin());
    if (at == columns.end()) columns.push_back(column);
    names.push_back(std::string(kind) + (number == 0 ? "" : "." + std::to_string(number)));
  }
  return names;
}

}  // namespace

std::vector<std::string> target_inputs(std::span<const LossSpec> losses) {
  return inputs_of(kTargetInput, losses, &LossSpec::target);
}

std::vector<std::string> weights_inputs(std::span<const LossSpec> losses) {
  return inputs_of(kWeightsInput, losses, &LossSpec::sample_weights);
}

namespace {

// Terms in training, and what they are divided by.
struct TermBuilder {
  GraphBuilder& builder;
  std::span<const LossSpec> losses;
  uint32_t microbatches;
  std::vector<Divisor> divisors{};
  std::vector<std::string> notes{};

  // `sum`, of what the microbatch counts, over what the step counts: its mean over the microbatches is the
  // step's term.
  ValueId divide(size_t term, ValueId sum, Divisor divisor) {
    divisor.input = std::string(kDivisorInput) + (term == 0 ? "" : "." + std::to_string(term));
    const ValueId input = builder.input(divisor.input, {DType::F32, {}}, InputRole::Loss);
    const DType dtype = builder.spec(sum).dtype;
    ValueId mean = builder.add(OpKind::Div, {sum, as(builder, dtype, input)});
    if (microbatches > 1)
      mean = builder.add(OpKind::Mul, {mean, builder.scalar(dtype, static_cast<double>(microbatches))});
    divisors.push_back(std::move(divisor));
    return mean;
  }

  Result<ValueId> cross_entropy(size_t term, ValueId prediction, ValueId labels, ValueId weights) {
    const LossSpec& loss = losses[term];
    const std::string labels_input = builder.graph().value(labels).name;
    WEFT_TRY(const Classes classes, classes_of(builder, loss, prediction, labels));
    const CountRule rule{.ignore_index = loss.ignore_index, .class_weights = loss.class_weights};
    if (loss.label_smoothing == 0 && !weights.valid()) {
      const bool is_uneven = loss.ignore_index || !loss.class_weights.empty();
      WEFT_TRY(const auto outputs,
               builder.try_add(OpKind::CrossEntropy, classes.operands(),
                               classes.attributes(is_uneven ? "sum" : "mean", loss), "loss"));
      if (!is_uneven) return outputs[0];
      return divide(term, outputs[0],
                    {.input = {}, .labels = labels_input, .sample_weights = {}, .rule = rule});
    }
    WEFT_TRY(Compared compared, compare_classes(builder, loss, classes, /*for_evaluation=*/false));
    WEFT_TRY_STATUS(apply_sample_weights(builder, loss, weights, compared));
    return divide(
        term, reduce_all(builder, OpKind::ReduceSum, compared.each),
        {.input = {}, .labels = labels_input, .sample_weights = compared.weights_input, .rule = rule});
  }

  Result<ValueId> elements(size_t term, ValueId prediction, ValueId target, ValueId weights) {
    WEFT_TRY(Compared compared, compare_elements(builder, losses[term], prediction, target, notes));
    if (!weights.valid()) return reduce_all(builder, OpKind::ReduceMean, compared.each);
    WEFT_TRY_STATUS(apply_sample_weights(builder, losses[term], weights, compared));
    return divide(
        term, reduce_all(builder, OpKind::ReduceSum, compared.each),
        {.input = {}, .labels = {}, .sample_weights = compared.weights_input, .rule = compared.rule});
  }

  // The model's own mean over labels: what it adds up, over what the step counts.
  Result<ValueId> counted_mean(size_t term, GraphCopy& copy, const CountedMean& mean) {
    Divisor divisor{.input = {}, .labels = mean.labels, .sample_weights = {}, .rule = mean.rule};
    if (mean.each.valid())
      return divide(term, reduce_all(builder, OpKind::ReduceSum, copy.mapped(mean.each)), std::move(divisor));
    const Op& op = copy.source().op(mean.cross_entropy);
    Attributes attributes = op.attributes;
    attributes.set(Attr::Reduction, std::string("sum"));
    std::vector<ValueId> operands;
    operands.reserve(op.inputs.size());
    for (const ValueId operand : op.inputs) operands.push_back(copy.mapped(operand));
    const ValueId sum =
        builder.add(OpKind::CrossEntropy, std::move(operands), std::move(attributes), op.name);
    return divide(term, sum, std::move(divisor));
  }

  Result<ValueId> own(size_t term, GraphCopy& copy, ValueId prediction) {
    const LossSpec& loss = losses[term];
    WEFT_TRY_STATUS(check_scalar(loss, copy.source().spec(prediction)));
    if (const auto mean = find_counted_mean(copy.source(), prediction))
      return counted_mean(term, copy, *mean);
    if (microbatches > 1)
      notes.push_back(
          "the loss '" + loss.prediction +
          "' is computed by the model: that of a step is the mean "
          "over its " +
          std::to_string(microbatches) +
          " microbatches; where they count unevenly many labels, use microbatch_size: batch_size, "
          "or a loss of the job");
    return as_wide(builder, copy.mapped(prediction));
  }
};

}  // namespace

Result<TrainingLoss> attach_training_loss(const Graph& model, std::span<const LossSpec> losses,
                                          std::span<const TermColumns> columns, uint32_t microbatches,
                                          const OpTable& table) {
  WEFT_CHECK(!losses.empty() && losses.size() == columns.size() && microbatches > 0);
  WEFT_TRY(const std::vector<ValueId> predictions, find_predictions(model, losses));
  GraphCopy copy = copy_model(model, table, /*keep_state_updates=*/true);
  GraphBuilder& builder = copy.builder();
  const TermInputs inputs(builder, losses, columns);
  TermBuilder terms{builder, losses, microbatches};
  ValueId sum;
  for (size_t i = 0; i < losses.size(); ++i) {
    const ValueId prediction = copy.mapped(predictions[i]);
    const auto made = losses[i].type == LossType::Output ? terms.own(i, copy, predictions[i])
                      : losses[i].type == LossType::CrossEntropy
                          ? terms.cross_entropy(i, prediction, inputs.targets[i], inputs.weights[i])
                          : terms.elements(i, prediction, inputs.targets[i], inputs.weights[i]);
    WEFT_TRY(ValueId term, made);
    if (losses[i].weight != 1)
      term = builder.add(OpKind::Mul, {term, builder.scalar(builder.spec(term).dtype, losses[i].weight)});
    if (losses.size() > 1) term = as_scalar(builder, term);
    if (sum.valid()) term = as(builder, builder.spec(sum).dtype, term);
    sum = sum.valid() ? builder.add(OpKind::Add, {sum, term}) : term;
  }
  builder.output("loss", sum, OutputRole::Loss);
  return TrainingLoss{prune(copy.finish(), table), std::move(terms.divisors), std::move(terms.notes)};
}

}  // namespace weft::dag
