#include "dag/loss.h"

#include <algorithm>

#include "base/check.h"
#include "dag/autodiff.h"
#include "dag/counted_mean.h"
#include "dag/metrics.h"

namespace weft::dag {
namespace {

Result<ValueId> find_prediction(const Graph& model, const std::string& name) {
  if (const GraphOutput* output = model.find_output(OutputRole::Prediction, name); output && !name.empty())
    return output->value;
  std::string text = "the model has no output '" + name + "'; its outputs are";
  for (const GraphOutput& output : model.outputs())
    if (output.role == OutputRole::Prediction) text += " '" + output.name + "'";
  return fail(ErrorCode::NotFound, text);
}

// A copy of the model whose outputs are only those that training or evaluation keeps.
GraphCopy copy_model(const Graph& model, const OpTable& table, bool keep_state_updates) {
  GraphCopy copy(model, table);
  for (uint32_t i = 0; i < model.ops().size(); ++i) copy.copy(OpId{i});
  copy.builder().set_phase(Phase::Forward);
  copy.builder().set_origin(OpId{});
  if (keep_state_updates)
    for (const GraphOutput& output : model.outputs())
      if (output.role == OutputRole::StateUpdate)
        copy.builder().output(output.name, copy.mapped(output.value), output.role);
  return copy;
}

// Of the logits' dims that the labels lack, the one that the job says, or the only one that fits.
Result<int64_t> chosen_axis(const LossSpec& loss, const Shape& logits, const Shape& labels) {
  if (!loss.axis) return class_axis(logits, labels);
  WEFT_TRY(const int64_t axis, normalise_axis(*loss.axis, static_cast<int64_t>(logits.size())));
  if (axis == 0)
    return fail(ErrorCode::InvalidArgument,
                "axis 0 of the logits " + to_string(logits) + " is that of the samples, not of the classes");
  Shape without = logits;
  without.erase(without.begin() + axis);
  if (without != labels)
    return fail(ErrorCode::InvalidArgument, "logits " + to_string(logits) + " without axis " +
                                                std::to_string(axis) + " are not shaped as the labels " +
                                                to_string(labels));
  return axis;
}

Ints all_axes(const Shape& shape) {
  Ints axes;
  for (size_t i = 0; i < shape.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  return axes;
}

ValueId reduce_all(GraphBuilder& builder, OpKind kind, ValueId value) {
  const Ints axes = all_axes(builder.spec(value).shape);
  return axes.empty() ? value
                      : builder.add(kind, {value}, {{Attr::Axes, axes}, {Attr::KeepDims, int64_t{0}}});
}

Status check_batch(const Shape& prediction, int64_t batch) {
  if (!prediction.empty() && prediction[0] == batch) return {};
  return fail(ErrorCode::InvalidArgument, "the compared output is shaped " + to_string(prediction) +
                                              ": its first axis is not the " + std::to_string(batch) +
                                              " samples of a microbatch");
}

ValueId as_scalar(GraphBuilder& builder, ValueId value) {
  return builder.spec(value).shape.empty() ? value
                                           : builder.add(OpKind::Reshape, {value}, {{Attr::Shape, Shape{}}});
}

ValueId as(GraphBuilder& builder, DType dtype, ValueId value) {
  if (builder.spec(value).dtype == dtype) return value;
  return builder.add(OpKind::Cast, {value}, {{Attr::DType, static_cast<int64_t>(dtype)}});
}

// Losses are computed in float32, or as wide as what is compared.
ValueId as_wide(GraphBuilder& builder, ValueId value) {
  return as(builder, builder.spec(value).dtype == DType::F64 ? DType::F64 : DType::F32, value);
}

// A loss takes floats, and some of them.
Status check_compared(const LossSpec& loss, const TensorSpec& spec) {
  if (spec.element_count() == 0)
    return fail(ErrorCode::InvalidArgument,
                "output '" + loss.prediction + "' is " + to_string(spec) + ": there is nothing to compare");
  if (is_float(spec.dtype)) return {};
  return fail(ErrorCode::InvalidArgument,
              "output '" + loss.prediction + "' is " + to_string(spec) + ": a loss compares floats");
}

Status check_scalar(const LossSpec& loss, const TensorSpec& spec) {
  if (spec.element_count() == 1 && is_float(spec.dtype)) return {};
  return fail(ErrorCode::InvalidArgument,
              "output '" + loss.prediction + "' is " + to_string(spec) + ": a loss is one number");
}

// The inputs of columns, by term; invalid for a term without one. Terms of one name share an input.
std::vector<ValueId> add_inputs(GraphBuilder& builder, std::span<const std::string> names,
                                const auto& spec_of) {
  std::vector<ValueId> inputs(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) continue;
    const auto first = static_cast<size_t>(std::find(names.begin(), names.end(), names[i]) - names.begin());
    inputs[i] = first < i ? inputs[first] : builder.input(names[i], spec_of(i), InputRole::Loss);
  }
  return inputs;
}

// The graph inputs of each term's columns.
struct TermInputs {
  std::vector<ValueId> targets, weights;

  TermInputs(GraphBuilder& builder, std::span<const LossSpec> losses, std::span<const TermColumns> columns)
      : targets(add_inputs(builder, target_inputs(losses), [&](size_t i) { return columns[i].target; })),
        weights(add_inputs(builder, weights_inputs(losses),
                           [&](size_t i) { return *columns[i].sample_weights; })) {}
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

Shape shape_of(GraphBuilder& builder, ValueId value) { return builder.spec(value).shape; }

// `column` of one number a sample, or of `shape`, stretched to that shape.
Result<ValueId> stretch(GraphBuilder& builder, ValueId column, const Shape& shape) {
  const Shape own = shape_of(builder, column);
  if (own == shape) return column;
  Shape wide = own;
  while (wide.size() > 1 && wide.back() == 1) wide.pop_back();
  if (shape.empty() || wide != Shape{shape[0]})
    return fail(ErrorCode::InvalidArgument, "sample weights " + to_string(own) +
                                                " are neither one a sample nor shaped as what they weigh, " +
                                                to_string(shape));
  wide.resize(shape.size(), 1);
  if (wide != own) column = builder.add(OpKind::Reshape, {column}, {{Attr::Shape, wide}});
  return wide == shape ? column : builder.add(OpKind::Expand, {column}, {{Attr::Shape, shape}});
}

ValueId product(GraphBuilder& builder, ValueId a, ValueId b) {
  if (!a.valid()) return b;
  return b.valid() ? builder.add(OpKind::Mul, {a, b}) : a;
}

Status apply_sample_weights(GraphBuilder& builder, const LossSpec& loss, ValueId column, Compared& compared) {
  if (!column.valid()) return {};
  const TensorSpec spec = builder.spec(column);
  if (!is_float(spec.dtype) && !is_integer(spec.dtype) && spec.dtype != DType::Bool)
    return fail(ErrorCode::InvalidArgument,
                "sample weights are numbers, '" + loss.sample_weights + "' holds " + to_string(spec));
  const TensorSpec each = builder.spec(compared.each);
  WEFT_TRY(const ValueId weights, stretch(builder, as(builder, each.dtype, column), each.shape));
  compared.weights = product(builder, compared.weights, weights);
  compared.each = builder.add(OpKind::Mul, {compared.each, weights});
  compared.weights_input = builder.graph().value(column).name;
  return {};
}

// ---- mse, l1, bce_with_logits

Shape without_ones(const Shape& shape) {
  Shape rest;
  std::copy_if(shape.begin() + 1, shape.end(), std::back_inserter(rest),
               [](int64_t dim) { return dim != 1; });
  return rest;
}

// The target in the prediction's shape, which may differ in axes of length 1 alone: [N] against [N,1] is one
// number a sample either way. With as many elements in another order it would be compared with others.
Result<ValueId> shaped_target(GraphBuilder& builder, const LossSpec& loss, const TensorSpec& prediction,
                              ValueId target, std::vector<std::string>& notes) {
  const TensorSpec spec = builder.spec(target);
  if (spec.shape == prediction.shape) return target;
  const bool fits = !spec.shape.empty() && !prediction.shape.empty() &&
                    spec.shape[0] == prediction.shape[0] &&
                    without_ones(spec.shape) == without_ones(prediction.shape);
  if (!fits)
    return fail(ErrorCode::InvalidArgument,
                "output '" + loss.prediction + "' is " + to_string(prediction) + " and target '" +
                    loss.target + "' is " + to_string(spec) +
                    ": they differ in shape; reshape or transpose the column to the output's shape");
  notes.push_back("target '" + loss.target + "' " + to_string(spec.shape) + " is taken as " +
                  to_string(prediction.shape) + ", the shape of output '" + loss.prediction + "'");
  return builder.add(OpKind::Reshape, {target}, {{Attr::Shape, prediction.shape}});
}

Result<Compared> compare_elements(GraphBuilder& builder, const LossSpec& loss, ValueId prediction,
                                  ValueId target, std::vector<std::string>& notes) {
  prediction = as_wide(builder, prediction);
  const TensorSpec spec = builder.spec(prediction);
  WEFT_TRY(target, shaped_target(builder, loss, spec, target, notes));
  target = as(builder, spec.dtype, target);
  Compared compared;
  if (!spec.shape.empty() && spec.shape[0] > 0) compared.rule.elements = spec.element_count() / spec.shape[0];
  if (loss.type == LossType::BceWithLogits) {
    // max(x,0) - x t + log(1 + e^-|x|) = softplus(x) - x t
    const ValueId softplus = builder.add(OpKind::Softplus, {prediction});
    compared.each = builder.add(OpKind::Sub, {softplus, builder.add(OpKind::Mul, {prediction, target})});
    return compared;
  }
  const ValueId difference = builder.add(OpKind::Sub, {prediction, target});
  compared.each = loss.type == LossType::L1 ? builder.add(OpKind::Abs, {difference})
                                            : builder.add(OpKind::Mul, {difference, difference});
  return compared;
}

// ---- cross entropy

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

Result<Classes> classes_of(GraphBuilder& builder, const LossSpec& loss, ValueId prediction, ValueId labels) {
  const TensorSpec logits = builder.spec(prediction), target = builder.spec(labels);
  if (!is_integer(target.dtype) && target.dtype != DType::Bool)
    return fail(ErrorCode::InvalidArgument, "cross_entropy wants integer labels, the column holds " +
                                                to_string(target) +
                                                "; store them as numpy's labels.astype('int64')");
  Classes classes{.logits = as_wide(builder, prediction), .labels = labels};
  WEFT_TRY(classes.axis, chosen_axis(loss, logits.shape, target.shape));
  classes.count = logits.shape[static_cast<size_t>(classes.axis)];
  if (target.dtype != DType::I32 && target.dtype != DType::I64)
    classes.labels = as(builder, DType::I64, labels);
  if (loss.class_weights.empty()) return classes;
  if (static_cast<int64_t>(loss.class_weights.size()) != classes.count)
    return fail(ErrorCode::InvalidArgument,
                "`class_weights` are " + std::to_string(loss.class_weights.size()) + " numbers, but logits " +
                    to_string(logits.shape) + " have " + std::to_string(classes.count) + " classes");
  classes.class_weights = builder.constant(
      from_doubles({builder.spec(classes.logits).dtype, {classes.count}}, loss.class_weights));
  return classes;
}

// 1 where the label counts, and 0 where it is the ignored one; invalid: all count.
ValueId counted_labels(GraphBuilder& builder, ValueId labels, std::optional<int64_t> ignored, DType dtype) {
  if (!ignored) return {};
  const DType own = builder.spec(labels).dtype;
  const ValueId equal =
      builder.add(OpKind::Equal, {labels, builder.scalar(own, static_cast<double>(*ignored))});
  return as(builder, dtype, builder.add(OpKind::Not, {equal}));
}

// w[label], and 0 for an ignored one; what only some do is left out.
ValueId label_weights(GraphBuilder& builder, ValueId labels, std::optional<int64_t> ignored,
                      ValueId class_weights, ValueId counts) {
  if (!class_weights.valid()) return counts;
  if (ignored) {
    const DType own = builder.spec(labels).dtype;
    const ValueId equal =
        builder.add(OpKind::Equal, {labels, builder.scalar(own, static_cast<double>(*ignored))});
    labels = builder.add(OpKind::Where, {equal, builder.scalar(own, 0), labels});
  }
  return product(builder, builder.add(OpKind::Gather, {class_weights, labels}, {{Attr::Axis, int64_t{0}}}),
                 counts);
}

// -sum of w[c] log p[c] over the classes, 0 where the label is ignored.
ValueId smoothed(GraphBuilder& builder, const Classes& classes, ValueId counts) {
  const TensorSpec logits = builder.spec(classes.logits);
  ValueId logs = builder.add(OpKind::LogSoftmax, {classes.logits}, {{Attr::Axis, classes.axis}});
  if (classes.class_weights.valid()) {
    Shape line(logits.shape.size(), 1);
    line[static_cast<size_t>(classes.axis)] = classes.count;
    logs = builder.add(OpKind::Mul,
                       {logs, builder.add(OpKind::Reshape, {classes.class_weights}, {{Attr::Shape, line}})});
  }
  const ValueId sum = builder.add(OpKind::ReduceSum, {logs},
                                  {{Attr::Axes, Ints{classes.axis}}, {Attr::KeepDims, int64_t{0}}});
  return product(builder, builder.add(OpKind::Neg, {sum}), counts);
}

// (1 - e) w[label] nll + e / C sum of w[c] (-log p[c]), by label.
Result<Compared> compare_classes(GraphBuilder& builder, const LossSpec& loss, const Classes& classes,
                                 bool for_evaluation) {
  WEFT_TRY(const auto outputs, builder.try_add(OpKind::CrossEntropy, classes.operands(),
                                               classes.attributes("none", loss), "loss"));
  const DType dtype = builder.spec(outputs[0]).dtype;
  Compared compared{.each = outputs[0]};
  compared.rule = {.ignore_index = loss.ignore_index, .class_weights = loss.class_weights};
  if (for_evaluation || loss.label_smoothing > 0)
    compared.counts = counted_labels(builder, classes.labels, loss.ignore_index, dtype);
  if (loss.label_smoothing > 0) {
    const double e = loss.label_smoothing;
    const ValueId right = builder.add(OpKind::Mul, {compared.each, builder.scalar(dtype, 1 - e)});
    const ValueId all =
        builder.add(OpKind::Mul, {smoothed(builder, classes, compared.counts),
                                  builder.scalar(dtype, e / static_cast<double>(classes.count))});
    compared.each = builder.add(OpKind::Add, {right, all});
  }
  if (!for_evaluation) return compared;
  compared.weights =
      label_weights(builder, classes.labels, loss.ignore_index, classes.class_weights, compared.counts);
  ValueId largest = builder.add(OpKind::ArgMax, {classes.logits},
                                {{Attr::Axis, classes.axis}, {Attr::KeepDims, int64_t{0}}});
  largest = as(builder, builder.spec(classes.labels).dtype, largest);
  compared.hits = as(builder, dtype, builder.add(OpKind::Equal, {largest, classes.labels}));
  return compared;
}

// ---- one term in training

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

// ---- one term in evaluation

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
  const Shape shape = shape_of(builder, compared.each);
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

// The outputs compared, by term, each a float.
Result<std::vector<ValueId>> find_predictions(const Graph& model, std::span<const LossSpec> losses) {
  std::vector<ValueId> predictions;
  for (const LossSpec& loss : losses) {
    WEFT_TRY(predictions.emplace_back(), find_prediction(model, loss.prediction));
    WEFT_TRY_STATUS(check_compared(loss, model.spec(predictions.back())));
  }
  return predictions;
}

}  // namespace

std::vector<std::string> target_inputs(std::span<const LossSpec> losses) {
  return inputs_of(kTargetInput, losses, &LossSpec::target);
}

std::vector<std::string> weights_inputs(std::span<const LossSpec> losses) {
  return inputs_of(kWeightsInput, losses, &LossSpec::sample_weights);
}

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
