#include "dag/loss_term.h"

#include <algorithm>
#include <iterator>

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

// A loss takes floats, and some of them.
Status check_compared(const LossSpec& loss, const TensorSpec& spec) {
  if (spec.element_count() == 0)
    return fail(ErrorCode::InvalidArgument,
                "output '" + loss.prediction + "' is " + to_string(spec) + ": there is nothing to compare");
  if (is_float(spec.dtype)) return {};
  return fail(ErrorCode::InvalidArgument,
              "output '" + loss.prediction + "' is " + to_string(spec) + ": a loss compares floats");
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

// `column` of one number a sample, or of `shape`, stretched to that shape.
Result<ValueId> stretch(GraphBuilder& builder, ValueId column, const Shape& shape) {
  const Shape own = builder.spec(column).shape;
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

}  // namespace

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

Result<std::vector<ValueId>> find_predictions(const Graph& model, std::span<const LossSpec> losses) {
  std::vector<ValueId> predictions;
  for (const LossSpec& loss : losses) {
    WEFT_TRY(predictions.emplace_back(), find_prediction(model, loss.prediction));
    WEFT_TRY_STATUS(check_compared(loss, model.spec(predictions.back())));
  }
  return predictions;
}

Status check_scalar(const LossSpec& loss, const TensorSpec& spec) {
  if (spec.element_count() == 1 && is_float(spec.dtype)) return {};
  return fail(ErrorCode::InvalidArgument,
              "output '" + loss.prediction + "' is " + to_string(spec) + ": a loss is one number");
}

ValueId reduce_all(GraphBuilder& builder, OpKind kind, ValueId value) {
  const Ints axes = all_axes(builder.spec(value).shape);
  return axes.empty() ? value
                      : builder.add(kind, {value}, {{Attr::Axes, axes}, {Attr::KeepDims, int64_t{0}}});
}

ValueId as_scalar(GraphBuilder& builder, ValueId value) {
  return builder.spec(value).shape.empty() ? value
                                           : builder.add(OpKind::Reshape, {value}, {{Attr::Shape, Shape{}}});
}

ValueId as(GraphBuilder& builder, DType dtype, ValueId value) {
  if (builder.spec(value).dtype == dtype) return value;
  return builder.add(OpKind::Cast, {value}, {{Attr::DType, static_cast<int64_t>(dtype)}});
}

ValueId as_wide(GraphBuilder& builder, ValueId value) {
  return as(builder, builder.spec(value).dtype == DType::F64 ? DType::F64 : DType::F32, value);
}

ValueId product(GraphBuilder& builder, ValueId a, ValueId b) {
  if (!a.valid()) return b;
  return b.valid() ? builder.add(OpKind::Mul, {a, b}) : a;
}

TermInputs::TermInputs(GraphBuilder& builder, std::span<const LossSpec> losses,
                       std::span<const TermColumns> columns)
    : targets(add_inputs(builder, target_inputs(losses), [&](size_t i) { return columns[i].target; })),
      weights(add_inputs(builder, weights_inputs(losses),
                         [&](size_t i) { return *columns[i].sample_weights; })) {}

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

ValueId counted_labels(GraphBuilder& builder, ValueId labels, std::optional<int64_t> ignored, DType dtype) {
  if (!ignored) return {};
  const DType own = builder.spec(labels).dtype;
  const ValueId equal =
      builder.add(OpKind::Equal, {labels, builder.scalar(own, static_cast<double>(*ignored))});
  return as(builder, dtype, builder.add(OpKind::Not, {equal}));
}

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

}  // namespace weft::dag
