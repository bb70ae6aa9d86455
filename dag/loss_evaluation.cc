// What evaluation adds up of a loss: sums over the samples that count, and over what they are divided by.
#include <optional>

#include "base/check.h"
#include "dag/autodiff.h"
#include "dag/counted_mean.h"
#include "dag/loss_term.h"
#include "dag/metrics.h"

namespace weft::dag {
namespace {

Status check_batch(const Shape& prediction, int64_t batch) {
  if (!prediction.empty() && prediction[0] == batch) return {};
  return fail(ErrorCode::InvalidArgument, "the compared output is shaped " + to_string(prediction) +
                                              ": its first axis is not the " + std::to_string(batch) +
                                              " samples of a microbatch");
}

// What one term gives to an evaluation, each a scalar; `correct` and `labels` (how many count, unweighted)
// only for CrossEntropy.
struct TermSums {
  ValueId loss{}, counted{}, correct{}, labels{};
};

// The mask over samples for each of the elements, which lie sample by sample.
ValueId stretch_mask(GraphBuilder& builder, ValueId mask, const Shape& shape) {
  const int64_t samples = builder.spec(mask).shape[0];
  const int64_t each = TensorSpec{DType::F32, shape}.element_count() / samples;
  ValueId wide = builder.add(OpKind::Reshape, {mask}, {{Attr::Shape, Shape{samples, 1}}});
  if (each > 1) wide = builder.add(OpKind::Expand, {wide}, {{Attr::Shape, Shape{samples, each}}});
  return builder.add(OpKind::Reshape, {wide}, {{Attr::Shape, shape}});
}

// Where, not a product: padding may hold anything, also what is not a number.
ValueId sum_where(GraphBuilder& builder, ValueId counted, ValueId each) {
  const ValueId zero = builder.scalar(DType::F32, 0.0);
  return reduce_all(builder, OpKind::ReduceSum, builder.add(OpKind::Where, {counted, each, zero}));
}

TermSums add_up(GraphBuilder& builder, const Compared& compared, ValueId mask) {
  const Shape shape = builder.spec(compared.each).shape;
  const auto f32 = [&](ValueId value) { return value.valid() ? as(builder, DType::F32, value) : value; };
  const ValueId samples = stretch_mask(builder, mask, shape);
  const ValueId labels = product(builder, samples, f32(compared.counts));
  const ValueId zero = builder.scalar(DType::F32, 0.0);
  const ValueId counted = builder.add(OpKind::Greater, {labels, zero});
  TermSums sums;
  sums.loss = sum_where(builder, counted, f32(compared.each));
  sums.counted = compared.weights.valid() ? sum_where(builder, counted, f32(compared.weights))
                                          : reduce_all(builder, OpKind::ReduceSum, labels);
  if (!compared.hits.valid()) return sums;
  sums.correct = reduce_all(builder, OpKind::ReduceSum, product(builder, f32(compared.hits), labels));
  sums.labels = reduce_all(builder, OpKind::ReduceSum, labels);
  return sums;
}

Result<TermSums> evaluation_term(GraphBuilder& builder, const LossSpec& loss, ValueId prediction,
                                 ValueId target, ValueId weights, ValueId mask) {
  Compared compared;
  std::vector<std::string> notes;
  if (loss.type == LossType::CrossEntropy) {
    WEFT_TRY(const Classes classes, classes_of(builder, loss, prediction, target));
    WEFT_TRY(compared, compare_classes(builder, loss, classes, /*for_evaluation=*/true));
  } else {
    WEFT_TRY(compared, compare_elements(builder, loss, prediction, target, notes));
  }
  WEFT_TRY_STATUS(apply_sample_weights(builder, loss, weights, compared));
  return add_up(builder, compared, mask);
}

// The model's own mean over labels, each of which counts by itself.
Result<TermSums> evaluate_counted_mean(GraphCopy& copy, const CountedMean& mean, ValueId mask) {
  GraphBuilder& builder = copy.builder();
  Compared compared;
  if (mean.each.valid()) {
    compared.each = copy.mapped(mean.each);
    compared.weights = copy.mapped(mean.weights);
    return add_up(builder, compared, mask);
  }
  const Op& op = copy.source().op(mean.cross_entropy);
  Attributes attributes = op.attributes;
  attributes.set(Attr::Reduction, std::string("none"));
  std::vector<ValueId> operands;
  operands.reserve(op.inputs.size());
  for (const ValueId operand : op.inputs) operands.push_back(copy.mapped(operand));
  compared.each = builder.add(OpKind::CrossEntropy, operands, std::move(attributes), op.name);
  const DType dtype = builder.spec(compared.each).dtype;
  compared.counts = counted_labels(builder, operands[1], mean.rule.ignore_index, dtype);
  compared.weights = label_weights(builder, operands[1], mean.rule.ignore_index,
                                   operands.size() > 2 ? operands[2] : ValueId{}, compared.counts);
  return add_up(builder, compared, mask);
}

// The model's own number, which knows nothing of padding: it counts where there is none.
TermSums own_term(GraphBuilder& builder, ValueId prediction, ValueId mask) {
  const ValueId samples = reduce_all(builder, OpKind::ReduceSum, mask);
  const ValueId size = builder.scalar(DType::F32, static_cast<double>(builder.spec(mask).shape[0]));
  const ValueId whole = builder.add(OpKind::Equal, {samples, size});
  const ValueId zero = builder.scalar(DType::F32, 0.0);
  const ValueId loss = as(builder, DType::F32, as_scalar(builder, prediction));
  return {.loss = builder.add(OpKind::Where, {whole, loss, zero}), .counted = as(builder, DType::F32, whole)};
}

// Scalars side by side.
ValueId join(GraphBuilder& builder, std::vector<ValueId> scalars) {
  for (ValueId& scalar : scalars) scalar = builder.add(OpKind::Reshape, {scalar}, {{Attr::Shape, Shape{1}}});
  return builder.add(OpKind::Concat, std::move(scalars), {{Attr::Axis, int64_t{0}}});
}

}  // namespace

Result<Graph> attach_evaluation_loss(const Graph& model, std::span<const LossSpec> losses,
                                     std::span<const TermColumns> columns, int64_t batch,
                                     const OpTable& table) {
  WEFT_CHECK(!losses.empty() && losses.size() == columns.size());
  WEFT_TRY(const std::vector<ValueId> predictions, find_predictions(model, losses));
  std::vector<std::optional<CountedMean>> means(losses.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    if (losses[i].type == LossType::Output) {
      WEFT_TRY_STATUS(check_scalar(losses[i], model.spec(predictions[i])));
      means[i] = find_counted_mean(model, predictions[i]);
    } else {
      WEFT_TRY_STATUS(check_batch(model.spec(predictions[i]).shape, batch));
    }
  }
  GraphCopy copy = copy_model(model, table, /*keep_state_updates=*/false);
  GraphBuilder& builder = copy.builder();
  const bool single = losses.size() == 1;
  if (single && losses[0].type == LossType::Output && !means[0]) {
    builder.output("loss", copy.mapped(predictions[0]), OutputRole::Loss);
    return prune(copy.finish(), table);
  }
  const TermInputs inputs(builder, losses, columns);
  const ValueId mask = builder.input(std::string(kMaskInput), {DType::F32, {batch}}, InputRole::Loss);
  std::vector<ValueId> sums, counted;
  ValueId correct, labels;
  for (size_t i = 0; i < losses.size(); ++i) {
    const ValueId prediction = copy.mapped(predictions[i]);
    TermSums term;
    if (means[i]) {
      WEFT_TRY(term, evaluate_counted_mean(copy, *means[i], mask));
    } else if (losses[i].type == LossType::Output) {
      term = own_term(builder, prediction, mask);
    } else {
      WEFT_TRY(term,
               evaluation_term(builder, losses[i], prediction, inputs.targets[i], inputs.weights[i], mask));
    }
    sums.push_back(term.loss);
    counted.push_back(term.counted);
    if (!correct.valid()) correct = term.correct, labels = term.labels;
  }
  if (loss_terms(losses).counts_hits_apart) counted.push_back(labels);
  builder.output("loss", single ? sums[0] : join(builder, sums), OutputRole::Loss);
  builder.output("counted", counted.size() == 1 ? counted[0] : join(builder, counted), OutputRole::Counted);
  if (correct.valid()) builder.output("correct", correct, OutputRole::Correct);
  return prune(copy.finish(), table);
}

}  // namespace weft::dag
