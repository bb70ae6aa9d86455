// Nodes whose value does not depend on data: constants, shapes, ranges. All of them are known at import.
#include <algorithm>
#include <cmath>

#include "dag/onnx/lowering.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {

Status lower_constant(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(0));
  if (const auto* proto = n.tensor_attr("value")) {
    auto tensor = tensor_from_proto(*proto, n.options().limits);
    if (!tensor) return n.refuse(tensor.error().code, tensor.error().message);
    Item item = n.constant(std::move(*tensor));
    item.four_bits = is_four_bit(*proto);
    return n.give(std::move(item));
  }
  if (n.has_attr("value_float")) return n.give(n.scalar(DType::F32, n.float_attr("value_float", 0)));
  if (n.has_attr("value_int")) {
    const int64_t value = n.int_attr("value_int", 0);
    WEFT_TRY_STATUS(n.attribute_status());
    return n.give(n.constant(dag::make_tensor(Shape{}, std::span(&value, 1))));
  }
  if (n.has_attr("value_ints")) {
    const Ints values = n.ints_attr("value_ints");
    WEFT_TRY_STATUS(n.attribute_status());
    return n.give(n.constant(
        dag::make_tensor(Shape{static_cast<int64_t>(values.size())}, std::span<const int64_t>(values))));
  }
  if (n.has_attr("value_floats")) {
    const auto values = n.floats_attr("value_floats");
    WEFT_TRY_STATUS(n.attribute_status());
    return n.give(n.constant(dag::from_doubles({DType::F32, {static_cast<int64_t>(values.size())}}, values)));
  }
  if (n.has_attr("value_string") || n.has_attr("value_strings"))
    return n.unsupported("its value is a string, and tensors of strings are not supported");
  if (n.has_attr("sparse_value"))
    return n.unsupported("its value is a sparse tensor; export it as a dense one");
  return n.unsupported("its value is neither a tensor nor numbers");
}

Status lower_shape_of(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Shape& shape = n.in(0).shape();
  const auto rank = static_cast<int64_t>(shape.size());
  const auto place = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? std::max(at, -rank) + rank : at, 0, rank);
  };
  const int64_t start = place(n.int_attr("start", 0));
  const int64_t end = place(n.int_attr("end", rank));
  WEFT_TRY_STATUS(n.attribute_status());
  const Shape part = start < end ? Shape(shape.begin() + start, shape.begin() + end) : Shape{};
  return n.give(
      n.constant(dag::make_tensor(Shape{static_cast<int64_t>(part.size())}, std::span<const int64_t>(part))));
}

Status lower_size(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const int64_t count = n.in(0).spec.element_count();
  return n.give(n.constant(dag::make_tensor(Shape{}, std::span(&count, 1))));
}

// A known tensor that does not come out of the evaluator is bounded here.
Status check_size(NodeContext& n, const TensorSpec& spec) {
  for (const int64_t dim : spec.shape)
    if (dim < 0) return n.invalid("shape " + to_string(spec.shape) + " has a negative dim");
  const auto count = dag::checked_element_count(spec.shape);
  if (!count) return n.refuse(count.error().code, count.error().message);
  if (spec.bytes().value > n.options().limits.value_bytes_max)
    return n.refuse(ErrorCode::ResourceExhausted, to_string(spec) + " is larger than any value may be");
  return {};
}

Status lower_constant_of_shape(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  WEFT_TRY(const Ints shape, n.ints(0, "shape"));
  Tensor value = dag::make_scalar(DType::F32, 0);
  if (const auto* proto = n.tensor_attr("value")) {
    auto tensor = tensor_from_proto(*proto, n.options().limits);
    if (!tensor) return n.refuse(tensor.error().code, tensor.error().message);
    if (tensor->element_count() != 1) return n.invalid("its value is not a single element");
    value = tensor->reshaped({});
  }
  WEFT_TRY_STATUS(check_size(n, {value.dtype(), shape}));
  return n.give(n.expand(n.constant(value), shape));
}

Status lower_range(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(3));
  const DType dtype = n.in(0).dtype();
  std::vector<double> numbers;
  for (size_t i = 0; i < 3; ++i) {
    if (!n.in(i).known || n.in(i).spec.element_count() != 1 || n.in(i).dtype() != dtype)
      return n.unsupported(
          "its bounds depend on data that is only known when the model runs, or are no scalars");
    numbers.push_back(to_doubles(*n.in(i).known)[0]);
  }
  const double count = std::ceil((numbers[1] - numbers[0]) / numbers[2]);
  if (!std::isfinite(count)) return n.invalid("its bounds make no range");
  if (count * static_cast<double>(dag::element_size(dtype)) >
      static_cast<double>(n.options().limits.folded_value_bytes_max))
    return n.refuse(ErrorCode::ResourceExhausted, "it would make " + std::to_string(count) + " elements");
  const auto size = static_cast<int64_t>(std::max(0.0, count));
  std::vector<double> values(static_cast<size_t>(size));
  for (size_t i = 0; i < values.size(); ++i) values[i] = numbers[0] + static_cast<double>(i) * numbers[2];
  return n.give(n.large_constant(dag::from_doubles({dtype, {size}}, values)));
}

Status lower_eye_like(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  if (x.rank() != 2) return n.invalid("x " + to_string(x.spec) + " is not a matrix");
  DType dtype = x.dtype();
  if (n.has_attr("dtype")) {
    const auto given =
        dtype_from_onnx(static_cast<int32_t>(std::clamp<int64_t>(n.int_attr("dtype", 0), -1, 1000)));
    if (!given) return n.refuse(given.error().code, given.error().message);
    dtype = *given;
  }
  const int64_t k = n.int_attr("k", 0);
  WEFT_TRY_STATUS(n.attribute_status());
  const TensorSpec spec{dtype, x.shape()};
  if (spec.bytes().value > n.options().limits.folded_value_bytes_max)
    return n.unsupported("a matrix of more than 8 MiB");
  const int64_t rows = x.shape()[0], columns = x.shape()[1];
  std::vector<double> values(static_cast<size_t>(rows * columns), 0);
  for (int64_t i = 0; i < rows; ++i)
    if (k >= -rows && k <= columns && i + k >= 0 && i + k < columns)
      values[static_cast<size_t>(i * columns + i + k)] = 1;
  return n.give(n.large_constant(dag::from_doubles(spec, values)));
}

constexpr LowerRow kGeneratorRows[] = {
    {"Constant", lower_constant},
    {"Shape", lower_shape_of, kNoOperand},
    {"Size", lower_size, kNoOperand},
    {"ConstantOfShape", lower_constant_of_shape, kNoOperand, operands(0)},
    {"Range", lower_range, kNoOperand, operands(0, 1, 2)},
    {"EyeLike", lower_eye_like, kNoOperand},
};

}  // namespace

std::span<const LowerRow> generator_lowerings() { return kGeneratorRows; }

}  // namespace weft::onnx
