#include "dag/loss.h"

#include <algorithm>

#include "dag/autodiff.h"

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

Result<int64_t> chosen_axis(const LossSpec& loss, const Shape& logits, const Shape& labels) {
  if (!loss.axis) return class_axis(logits, labels);
  WEFT_TRY(const int64_t axis, normalise_axis(*loss.axis, static_cast<int64_t>(logits.size())));
  Shape without = logits;
  without.erase(without.begin() + axis);
  if (without != labels)
    return fail(ErrorCode::InvalidArgument, "logits " + to_string(logits) + " without axis " +
                                                std::to_string(axis) + " are not shaped as the labels " +
                                                to_string(labels));
  return axis;
}

Result<Attributes> cross_entropy_attributes(const LossSpec& loss, const TensorSpec& logits,
                                            const TensorSpec& labels, std::string reduction) {
  if (!is_integer(labels.dtype))
    return fail(ErrorCode::InvalidArgument,
                "cross_entropy wants integer labels, the column holds " + to_string(labels));
  WEFT_TRY(const int64_t axis, chosen_axis(loss, logits.shape, labels.shape));
  Attributes attributes{{Attr::Axis, axis}, {Attr::Reduction, std::move(reduction)}};
  if (loss.ignore_index) attributes.set(Attr::IgnoreIndex, *loss.ignore_index);
  return attributes;
}

// The loss of every element, of the prediction's shape: mse, l1, bce_with_logits.
Result<ValueId> elementwise_loss(GraphBuilder& builder, LossType type, ValueId prediction, ValueId target) {
  const TensorSpec spec = builder.spec(prediction);
  if (spec.element_count() == 0)
    return fail(ErrorCode::InvalidArgument, "the output " + to_string(spec) + " has nothing to compare");
  if (!is_float(builder.spec(target).dtype))
    target = builder.add(OpKind::Cast, {target}, {{Attr::DType, static_cast<int64_t>(spec.dtype)}});
  if (builder.spec(target).shape != spec.shape) {
    // [N] against [N,1] is one number a sample either way; anything else would broadcast by accident.
    if (builder.spec(target).element_count() != spec.element_count() || spec.shape.empty() ||
        builder.spec(target).shape.front() != spec.shape.front())
      return fail(ErrorCode::InvalidArgument, "the output " + to_string(spec) + " and the target " +
                                                  to_string(builder.spec(target)) + " differ in shape");
    target = builder.add(OpKind::Reshape, {target}, {{Attr::Shape, spec.shape}});
  }
  if (type == LossType::BceWithLogits) {
    // max(x,0) - x t + log(1 + e^-|x|) = softplus(x) - x t
    const ValueId softplus = builder.add(OpKind::Softplus, {prediction});
    return builder.add(OpKind::Sub, {softplus, builder.add(OpKind::Mul, {prediction, target})});
  }
  const ValueId difference = builder.add(OpKind::Sub, {prediction, target});
  if (type == LossType::L1) return builder.add(OpKind::Abs, {difference});
  return builder.add(OpKind::Mul, {difference, difference});
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

ValueId as_f32(GraphBuilder& builder, ValueId value) {
  if (builder.spec(value).dtype == DType::F32) return value;
  return builder.add(OpKind::Cast, {value}, {{Attr::DType, static_cast<int64_t>(DType::F32)}});
}

Status check_scalar(const LossSpec& loss, const TensorSpec& spec) {
  if (spec.element_count() == 1 && is_float(spec.dtype)) return {};
  return fail(ErrorCode::InvalidArgument,
              "output '" + loss.prediction + "' is " + to_string(spec) + ": a loss is one number");
}

// The inputs of all targets, by term; invalid for LossType::Output.
std::vector<ValueId> add_targets(GraphBuilder& builder, std::span<const LossSpec> losses,
                                 std::span<const TensorSpec> targets) {
  const std::vector<std::string> names = target_inputs(losses);
  std::vector<ValueId> inputs(losses.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    if (names[i].empty()) continue;
    const auto first = static_cast<size_t>(std::find(names.begin(), names.end(), names[i]) - names.begin());
    inputs[i] = first < i ? inputs[first] : builder.input(names[i], targets[i]);
  }
  return inputs;
}

// The mean over the microbatch, a scalar.
Result<ValueId> training_term(GraphBuilder& builder, const LossSpec& loss, ValueId prediction,
                              ValueId target) {
  if (loss.type == LossType::Output) {
    WEFT_TRY_STATUS(check_scalar(loss, builder.spec(prediction)));
    return prediction;
  }
  if (loss.type == LossType::CrossEntropy) {
    WEFT_TRY(Attributes attributes,
             cross_entropy_attributes(loss, builder.spec(prediction), builder.spec(target), "mean"));
    WEFT_TRY(const auto outputs,
             builder.try_add(OpKind::CrossEntropy, {prediction, target}, std::move(attributes), "loss"));
    return outputs[0];
  }
  WEFT_TRY(const ValueId each, elementwise_loss(builder, loss.type, prediction, target));
  return reduce_all(builder, OpKind::ReduceMean, each);
}

// What one term gives to an evaluation, each a scalar; `correct` only for CrossEntropy.
struct TermSums {
  ValueId loss, counted, correct;
};

// Whether each element counts, 1 or 0, of the shape of the elements' losses: the mask over samples,
// stretched, without the labels that are ignored.
ValueId stretch_mask(GraphBuilder& builder, ValueId mask, const Shape& shape, ValueId counts) {
  Shape column(shape.size(), 1);
  column[0] = builder.spec(mask).shape[0];
  ValueId weight = builder.add(OpKind::Reshape, {mask}, {{Attr::Shape, column}});
  if (column != shape) weight = builder.add(OpKind::Expand, {weight}, {{Attr::Shape, shape}});
  return counts.valid() ? builder.add(OpKind::Mul, {weight, counts}) : weight;
}

Result<TermSums> evaluation_term(GraphBuilder& builder, const LossSpec& loss, ValueId prediction,
                                 ValueId labels, ValueId mask) {
  ValueId each, counts, correct;
  if (loss.type == LossType::CrossEntropy) {
    const TensorSpec logits = builder.spec(prediction), target = builder.spec(labels);
    WEFT_TRY(Attributes attributes, cross_entropy_attributes(loss, logits, target, "none"));
    const int64_t axis = attributes.get_int(Attr::Axis);
    WEFT_TRY(const auto outputs,
             builder.try_add(OpKind::CrossEntropy, {prediction, labels}, std::move(attributes), "loss"));
    each = outputs[0];
    ValueId largest =
        builder.add(OpKind::ArgMax, {prediction}, {{Attr::Axis, axis}, {Attr::KeepDims, int64_t{0}}});
    if (target.dtype != DType::I64)
      largest = builder.add(OpKind::Cast, {largest}, {{Attr::DType, static_cast<int64_t>(target.dtype)}});
    correct = builder.add(OpKind::Cast, {builder.add(OpKind::Equal, {largest, labels})},
                          {{Attr::DType, static_cast<int64_t>(DType::F32)}});
    if (loss.ignore_index) {
      const ValueId ignored = builder.add(
          OpKind::Equal, {labels, builder.scalar(target.dtype, static_cast<double>(*loss.ignore_index))});
      counts = builder.add(OpKind::Cast, {builder.add(OpKind::Not, {ignored})},
                           {{Attr::DType, static_cast<int64_t>(DType::F32)}});
    }
  } else {
    WEFT_TRY(each, elementwise_loss(builder, loss.type, prediction, labels));
  }
  each = as_f32(builder, each);
  const ValueId weight = stretch_mask(builder, mask, builder.spec(each).shape, counts);
  // Where, not a product: padding may hold anything, also what is not a number.
  const ValueId zero = builder.scalar(DType::F32, 0.0);
  const ValueId counted = builder.add(OpKind::Greater, {weight, zero});
  TermSums sums;
  sums.loss = reduce_all(builder, OpKind::ReduceSum, builder.add(OpKind::Where, {counted, each, zero}));
  sums.counted = reduce_all(builder, OpKind::ReduceSum, weight);
  if (correct.valid())
    sums.correct = reduce_all(builder, OpKind::ReduceSum, builder.add(OpKind::Mul, {correct, weight}));
  return sums;
}

// The model's own number, which knows nothing of padding: it counts where there is none.
TermSums own_term(GraphBuilder& builder, ValueId prediction, ValueId mask) {
  const ValueId samples = reduce_all(builder, OpKind::ReduceSum, mask);
  const ValueId size = builder.scalar(DType::F32, static_cast<double>(builder.spec(mask).shape[0]));
  const ValueId whole = builder.add(OpKind::Equal, {samples, size});
  const ValueId zero = builder.scalar(DType::F32, 0.0);
  return {.loss = builder.add(OpKind::Where, {whole, as_f32(builder, as_scalar(builder, prediction)), zero}),
          .counted = builder.add(OpKind::Cast, {whole}, {{Attr::DType, static_cast<int64_t>(DType::F32)}}),
          .correct = {}};
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
    for (size_t axis = 0; axis < logits.size(); ++axis) {
      Shape without = logits;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(axis));
      if (without == labels) fits.push_back(static_cast<int64_t>(axis));
    }
  if (fits.size() == 1) return fits[0];
  const std::string shapes = "logits " + to_string(logits) + " and labels " + to_string(labels);
  if (fits.empty())
    return fail(ErrorCode::InvalidArgument,
                shapes + " do not fit: the labels must have the logits' shape without the class axis");
  return fail(ErrorCode::InvalidArgument, shapes + " fit in more than one way: say `axis:` in the loss");
}

std::vector<std::string> target_inputs(std::span<const LossSpec> losses) {
  std::vector<std::string> columns, names;
  for (const LossSpec& loss : losses) {
    if (loss.type == LossType::Output) {
      names.emplace_back();
      continue;
    }
    const auto at = std::find(columns.begin(), columns.end(), loss.target);
    const auto number = static_cast<size_t>(at - columns.begin());
    if (at == columns.end()) columns.push_back(loss.target);
    names.push_back(std::string(kTargetInput) + (number == 0 ? "" : "." + std::to_string(number)));
  }
  return names;
}

Result<Graph> attach_training_loss(const Graph& model, std::span<const LossSpec> losses,
                                   std::span<const TensorSpec> targets, const OpTable& table) {
  WEFT_CHECK(!losses.empty() && losses.size() == targets.size());
  std::vector<ValueId> predictions;
  for (const LossSpec& loss : losses) {
    WEFT_TRY(predictions.emplace_back(), find_prediction(model, loss.prediction));
  }
  GraphCopy copy = copy_model(model, table, /*keep_state_updates=*/true);
  GraphBuilder& builder = copy.builder();
  const std::vector<ValueId> inputs = add_targets(builder, losses, targets);
  ValueId sum;
  for (size_t i = 0; i < losses.size(); ++i) {
    WEFT_TRY(ValueId term, training_term(builder, losses[i], copy.mapped(predictions[i]), inputs[i]));
    const DType dtype = builder.spec(term).dtype;
    if (losses[i].weight != 1)
      term = builder.add(OpKind::Mul, {term, builder.scalar(dtype, losses[i].weight)});
    if (losses.size() > 1) term = as_scalar(builder, term);
    if (sum.valid() && dtype != builder.spec(sum).dtype)
      term =
          builder.add(OpKind::Cast, {term}, {{Attr::DType, static_cast<int64_t>(builder.spec(sum).dtype)}});
    sum = sum.valid() ? builder.add(OpKind::Add, {sum, term}) : term;
  }
  builder.output("loss", sum, OutputRole::Loss);
  return prune(copy.finish(), table);
}

Result<Graph> attach_evaluation_loss(const Graph& model, std::span<const LossSpec> losses,
                                     std::span<const TensorSpec> targets, int64_t batch,
                                     const OpTable& table) {
  WEFT_CHECK(!losses.empty() && losses.size() == targets.size());
  std::vector<ValueId> predictions;
  for (const LossSpec& loss : losses) {
    WEFT_TRY(predictions.emplace_back(), find_prediction(model, loss.prediction));
    if (loss.type == LossType::Output) {
      WEFT_TRY_STATUS(check_scalar(loss, model.spec(predictions.back())));
    } else {
      WEFT_TRY_STATUS(check_batch(model.spec(predictions.back()).shape, batch));
    }
  }
  GraphCopy copy = copy_model(model, table, /*keep_state_updates=*/false);
  GraphBuilder& builder = copy.builder();
  if (losses.size() == 1 && losses[0].type == LossType::Output) {
    builder.output("loss", copy.mapped(predictions[0]), OutputRole::Loss);
    return prune(copy.finish(), table);
  }
  const std::vector<ValueId> labels = add_targets(builder, losses, targets);
  const ValueId mask = builder.input(std::string(kMaskInput), {DType::F32, {batch}});
  std::vector<ValueId> sums, counted;
  ValueId correct;
  for (size_t i = 0; i < losses.size(); ++i) {
    const ValueId prediction = copy.mapped(predictions[i]);
    TermSums term;
    if (losses[i].type == LossType::Output) {
      term = own_term(builder, prediction, mask);
    } else {
      WEFT_TRY(term, evaluation_term(builder, losses[i], prediction, labels[i], mask));
    }
    sums.push_back(term.loss);
    counted.push_back(term.counted);
    if (!correct.valid()) correct = term.correct;
  }
  const bool single = losses.size() == 1;
  builder.output("loss", single ? sums[0] : join(builder, sums), OutputRole::Loss);
  builder.output("counted", single ? counted[0] : join(builder, counted), OutputRole::Counted);
  if (correct.valid()) builder.output("correct", correct, OutputRole::Correct);
  return prune(copy.finish(), table);
}

}  // namespace weft::dag
