#include "dag/stored_matrix.h"

#include <vector>

namespace weft::dag {
namespace {

tl::unexpected<Error> refuse(std::string message) {
  return fail(ErrorCode::InvalidArgument, std::move(message));
}
bool is_up_to_single(DType dtype) { return dtype == DType::F32 || is_half(dtype); }

Status need(const ShapeContext& context, size_t operand, const TensorSpec& spec) {
  if (context.in(operand).dtype == spec.dtype && context.in(operand).element_count() == spec.element_count())
    return {};
  return refuse("operand " + std::to_string(operand) + " is " + to_string(context.in(operand)) +
                ", want as many elements as " + to_string(spec));
}

float float_at(const Tensor& tensor, size_t i) {
  switch (tensor.dtype()) {
    case DType::F16:
      return float_from_f16(tensor.as<uint16_t>()[i]);
    case DType::BF16:
      return float_from_bf16(tensor.as<uint16_t>()[i]);
    default:
      return tensor.as<float>()[i];
  }
}
float nearest(DType dtype, float value) {
  switch (dtype) {
    case DType::F16:
      return float_from_f16(f16_from_float(value));
    case DType::BF16:
      return float_from_bf16(bf16_from_float(value));
    default:
      return value;
  }
}
int integer_at(const StoredMatrix& matrix, const Tensor& tensor, int64_t bits, size_t i) {
  const bool is_signed = matrix.numbers == DType::I8;
  if (bits == 8) return is_signed ? tensor.as<int8_t>()[i] : tensor.as<uint8_t>()[i];
  const int four = std::to_integer<int>(tensor.bytes()[i / 2]) >> (i % 2 * 4) & 15;
  return is_signed && four > 7 ? four - 16 : four;
}

}  // namespace

Attributes StoredMatrix::attributes() const {
  Attributes attributes{{Attr::Shape, Ints{rows, columns}}};
  if (is_half()) return attributes;
  attributes.set(Attr::Bits, bits);
  attributes.set(Attr::Sizes, Ints{block_rows, block_columns});
  attributes.set(Attr::DType, static_cast<int64_t>(rounded));
  if (zero_of_all != 0) attributes.set(Attr::Zero, zero_of_all);
  return attributes;
}

std::string to_string(const StoredMatrix& matrix) {
  const TensorSpec spec{matrix.numbers, {matrix.rows, matrix.columns}};
  if (matrix.is_half()) return to_string(spec);
  return std::to_string(matrix.bits) + " bits of " + to_string(spec) + " by " +
         std::to_string(matrix.block_rows) + "x" + std::to_string(matrix.block_columns);
}

Result<StoredMatrix> stored_matrix(const ShapeContext& context, size_t first) {
  if (!context.has(first)) return refuse("operand " + std::to_string(first) + " is missing");
  const Ints& shape = context.attributes.get_ints(Attr::Shape);
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1) return refuse("attribute shape is no matrix's");
  WEFT_TRY_STATUS(checked_element_count(shape));
  StoredMatrix matrix{.rows = shape[0], .columns = shape[1], .numbers = context.in(first).dtype};
  if (matrix.is_half()) {
    if (context.has(first + 1) || context.has(first + 2)) return refuse("halves have neither scale nor zero");
    WEFT_TRY_STATUS(need(context, first, matrix.numbers_spec()));
    return matrix;
  }
  if (matrix.numbers != DType::I8 && matrix.numbers != DType::U8)
    return refuse("operand " + std::to_string(first) + " is " + to_string(context.in(first)) +
                  ", want dtype f16, bf16, i8 or u8");
  matrix.bits = context.attributes.get_int(Attr::Bits, 8);
  if (matrix.bits != 8 && matrix.bits != 4) return refuse("attribute bits is neither 8 nor 4");
  const Ints& block = context.attributes.get_ints(Attr::Sizes);
  if (block.size() != 2 || block[0] < 1 || block[1] < 1 || block[0] > shape[0] || block[1] > shape[1])
    return refuse("attribute sizes is no block of the matrix");
  matrix.block_rows = block[0], matrix.block_columns = block[1];
  const int64_t rounded = context.attributes.get_int(Attr::DType, static_cast<int64_t>(DType::F32));
  if (rounded < 0 || rounded > static_cast<int64_t>(DType::Bool) || !is_up_to_single(DType(rounded)))
    return refuse("attribute dtype is neither f32 nor a half's");
  matrix.rounded = DType(rounded);
  if (!context.has(first + 1) || !is_up_to_single(context.in(first + 1).dtype))
    return refuse("operand " + std::to_string(first + 1) + " is no scale in f32, f16 or bf16");
  matrix.scale = context.in(first + 1).dtype;
  matrix.has_zero = context.has(first + 2);
  if (matrix.has_zero) matrix.zero_bits = matrix.zero_bits_of(context.in(first + 2).element_count());
  matrix.zero_of_all = context.attributes.get_int(Attr::Zero);
  if (matrix.zero_of_all < -128 || matrix.zero_of_all > 255 || (matrix.has_zero && matrix.zero_of_all != 0))
    return refuse("attribute zero is none of the numbers, or there is a zero for each block");
  WEFT_TRY_STATUS(need(context, first, matrix.numbers_spec()));
  WEFT_TRY_STATUS(need(context, first + 1, matrix.scale_spec()));
  if (matrix.has_zero) WEFT_TRY_STATUS(need(context, first + 2, matrix.zero_spec()));
  return matrix;
}

StoredMatrix stored_matrix_of(const Graph& graph, const Op& op, size_t first) {
  std::vector<const TensorSpec*> specs;
  specs.reserve(op.inputs.size());
  for (const ValueId input : op.inputs) specs.push_back(input.valid() ? &graph.spec(input) : nullptr);
  return stored_matrix({specs, op.attributes}, first).value();
}

Tensor widened_rows(const StoredMatrix& matrix, const StoredTensors& tensors, int64_t row, int64_t count) {
  Tensor wide({DType::F32, {count, matrix.columns}});
  const std::span<float> result = wide.mutable_as<float>();
  size_t at = static_cast<size_t>(row * matrix.columns);
  for (size_t i = 0; i < result.size(); ++i, ++at) {
    if (matrix.is_half()) {
      result[i] = float_at(tensors.numbers, at);
      continue;
    }
    const int64_t r = static_cast<int64_t>(at) / matrix.columns,
                  c = static_cast<int64_t>(at) % matrix.columns;
    const auto block =
        static_cast<size_t>(r / matrix.block_rows * matrix.scale_columns() + c / matrix.block_columns);
    const int64_t zero =
        matrix.has_zero ? integer_at(matrix, tensors.zero, matrix.zero_bits, block) : matrix.zero_of_all;
    const int64_t number = integer_at(matrix, tensors.numbers, matrix.bits, at) - zero;
    result[i] = nearest(matrix.rounded, static_cast<float>(number) * float_at(tensors.scale, block));
  }
  return wide;
}

}  // namespace weft::dag
