#include "dag/onnx/tensor_proto.h"

#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>

namespace weft::onnx {
namespace {
using dag::DType;
using dag::Tensor;
using dag::TensorSpec;
using dag::to_string;
using Proto = pb::TensorProto;

std::string who(const Proto& proto) {
  return proto.name().empty() ? std::string("a tensor") : "tensor '" + proto.name().substr(0, 128) + "'";
}

tl::unexpected<Error> corrupted(const Proto& proto, const std::string& what) {
  return fail(ErrorCode::Corrupted, who(proto) + ": " + what);
}

// Copies a repeated field of wider numbers into T, refusing values that T cannot hold.
template <typename T, typename Source>
Status narrow(const Proto& proto, const Source& source, Tensor& target) {
  auto values = target.mutable_as<T>();
  for (int i = 0; i < source.size(); ++i) {
    const auto value = source.Get(i);
    if constexpr (std::is_floating_point_v<T>) {
      values[static_cast<size_t>(i)] = value;
    } else {
      if (!std::in_range<T>(value))
        return corrupted(proto, "element " + std::to_string(i) + " is " + std::to_string(value) +
                                    ", out of range for " + std::string(to_string(target.dtype())));
      values[static_cast<size_t>(i)] = static_cast<T>(value);
    }
  }
  return {};
}

Status from_int32_data(const Proto& proto, Tensor& target) {
  const auto& data = proto.int32_data();
  switch (target.dtype()) {
    case DType::I32:
      return narrow<int32_t>(proto, data, target);
    case DType::I16:
      return narrow<int16_t>(proto, data, target);
    case DType::I8:
      return narrow<int8_t>(proto, data, target);
    case DType::U8:
    case DType::Bool:
      return narrow<uint8_t>(proto, data, target);
    default:
      return narrow<uint16_t>(proto, data, target);  // U16, F16 and BF16 bit patterns
  }
}

int typed_count(const Proto& proto, DType dtype) {
  switch (dtype) {
    case DType::F32:
      return proto.float_data_size();
    case DType::F64:
      return proto.double_data_size();
    case DType::I64:
      return proto.int64_data_size();
    case DType::U32:
    case DType::U64:
      return proto.uint64_data_size();
    default:
      return proto.int32_data_size();
  }
}
int all_typed_counts(const Proto& proto) {
  return proto.float_data_size() + proto.double_data_size() + proto.int64_data_size() +
         proto.uint64_data_size() + proto.int32_data_size() + proto.string_data_size();
}

Status copy_typed(const Proto& proto, Tensor& target) {
  switch (target.dtype()) {
    case DType::F32:
      return narrow<float>(proto, proto.float_data(), target);
    case DType::F64:
      return narrow<double>(proto, proto.double_data(), target);
    case DType::I64:
      return narrow<int64_t>(proto, proto.int64_data(), target);
    case DType::U32:
      return narrow<uint32_t>(proto, proto.uint64_data(), target);
    case DType::U64:
      return narrow<uint64_t>(proto, proto.uint64_data(), target);
    default:
      return from_int32_data(proto, target);
  }
}

// Types that ONNX got after the schema's library here was made, by their numbers.
constexpr std::pair<int32_t, std::string_view> kTypesWithoutArithmetic[] = {
    {17, "float8e4m3fn"}, {18, "float8e4m3fnuz"}, {19, "float8e5m2"}, {20, "float8e5m2fnuz"}, {21, "uint4"},
    {22, "int4"},         {23, "float4e2m1"},     {24, "float8e8m0"}, {25, "uint2"},          {26, "int2"},
};

constexpr int32_t kUint4 = 21, kInt4 = 22;  // the schema's library may be older than they are

// The lower half of a byte comes first.
void unpack(std::span<const std::byte> stored, Tensor& target) {
  const bool is_signed = target.dtype() == DType::I8;
  const auto values = target.mutable_as<uint8_t>();
  for (size_t i = 0; i < values.size(); ++i) {
    const auto byte = static_cast<uint8_t>(stored[i / 2]);
    const auto half = static_cast<uint8_t>(i % 2 == 0 ? byte & 0x0F : byte >> 4);
    values[i] = static_cast<uint8_t>(is_signed && half > 7 ? half | 0xF0 : half);
  }
}

// In the typed field each number is such a byte.
Result<Tensor> four_bit_from_typed(const Proto& proto, const TensorSpec& spec) {
  if (proto.int32_data_size() != stored_bytes(proto, spec) ||
      all_typed_counts(proto) != proto.int32_data_size())
    return corrupted(proto, "claims " + std::to_string(spec.element_count()) +
                                " numbers of four bits, but holds " +
                                std::to_string(all_typed_counts(proto)) + " bytes");
  std::vector<std::byte> stored;
  for (const int32_t pair : proto.int32_data()) {
    if (pair < -128 || pair > 255) return corrupted(proto, std::to_string(pair) + " is no byte");
    stored.push_back(static_cast<std::byte>(pair & 0xFF));
  }
  return tensor_from_stored(proto, spec, stored);
}

}  // namespace

bool is_four_bit(const Proto& proto) { return proto.data_type() == kUint4 || proto.data_type() == kInt4; }

bool stays_packed(const Proto& proto, const TensorSpec& spec) {
  constexpr int64_t kPackedMin = 4096;  // bytes
  return is_four_bit(proto) && spec.rank() == 2 && stored_bytes(proto, spec) >= kPackedMin;
}

bool is_packed(const Proto& proto, const TensorSpec& held) {
  return is_four_bit(proto) && held.rank() == 1 && proto.dims_size() == 2;
}

int64_t stored_bytes(const Proto& proto, const TensorSpec& spec) {
  return is_four_bit(proto) && !is_packed(proto, spec) ? (spec.element_count() + 1) / 2 : spec.bytes().value;
}

Tensor tensor_from_stored(const Proto& proto, const TensorSpec& spec, std::span<const std::byte> stored) {
  if (!is_four_bit(proto)) return Tensor(spec, stored);
  Tensor tensor(spec);
  unpack(stored, tensor);
  return tensor;
}

std::vector<std::byte> stored_form(const Proto& proto, const Tensor& tensor) {
  const auto bytes = tensor.bytes();
  if (!is_four_bit(proto) || is_packed(proto, tensor.spec())) return {bytes.begin(), bytes.end()};
  std::vector<std::byte> stored(static_cast<size_t>(stored_bytes(proto, tensor.spec())));
  for (size_t i = 0; i < bytes.size(); ++i)
    stored[i / 2] |= (bytes[i] & std::byte{0x0F}) << (i % 2 == 0 ? 0 : 4);
  return stored;
}

Result<DType> dtype_from_onnx(int32_t data_type) {
  switch (data_type) {
    case Proto::FLOAT:
      return DType::F32;
    case Proto::UINT8:
      return DType::U8;
    case Proto::INT8:
      return DType::I8;
    case Proto::UINT16:
      return DType::U16;
    case Proto::INT16:
      return DType::I16;
    case Proto::INT32:
      return DType::I32;
    case Proto::INT64:
      return DType::I64;
    case Proto::BOOL:
      return DType::Bool;
    case Proto::FLOAT16:
      return DType::F16;
    case Proto::DOUBLE:
      return DType::F64;
    case Proto::UINT32:
      return DType::U32;
    case Proto::UINT64:
      return DType::U64;
    case Proto::BFLOAT16:
      return DType::BF16;
    case Proto::STRING:
      return fail(ErrorCode::Unsupported, "tensors of strings are not supported");
    case Proto::COMPLEX64:
    case Proto::COMPLEX128:
      return fail(ErrorCode::Unsupported, "tensors of complex numbers are not supported");
    default:
      break;
  }
  for (const auto& [number, name] : kTypesWithoutArithmetic)
    if (data_type == number)
      return fail(ErrorCode::Unsupported, "tensors of " + std::string(name) +
                                              " are not supported; export the model with float32, float16 or "
                                              "bfloat16 weights");
  return fail(ErrorCode::Corrupted, "tensor data type " + std::to_string(data_type) + " does not exist");
}

int32_t dtype_to_onnx(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return Proto::FLOAT;
    case DType::F64:
      return Proto::DOUBLE;
    case DType::F16:
      return Proto::FLOAT16;
    case DType::BF16:
      return Proto::BFLOAT16;
    case DType::I8:
      return Proto::INT8;
    case DType::U8:
      return Proto::UINT8;
    case DType::I16:
      return Proto::INT16;
    case DType::U16:
      return Proto::UINT16;
    case DType::I32:
      return Proto::INT32;
    case DType::U32:
      return Proto::UINT32;
    case DType::I64:
      return Proto::INT64;
    case DType::U64:
      return Proto::UINT64;
    case DType::Bool:
      return Proto::BOOL;
  }
  return Proto::UNDEFINED;
}

Result<TensorSpec> tensor_spec(const Proto& proto, const ImportLimits& limits) {
  TensorSpec spec;
  auto dtype = dtype_from_onnx(is_four_bit(proto) ? proto.data_type() == kInt4 ? Proto::INT8 : Proto::UINT8
                                                  : proto.data_type());
  if (!dtype) return fail(dtype.error().within(who(proto)));
  spec.dtype = *dtype;
  if (proto.dims_size() > limits.rank_max)
    return fail(ErrorCode::OutOfRange, who(proto) + " has " + std::to_string(proto.dims_size()) +
                                           " dims; at most " + std::to_string(limits.rank_max) +
                                           " are accepted");
  spec.shape.assign(proto.dims().begin(), proto.dims().end());
  for (const int64_t dim : spec.shape)  // a zero elsewhere would hide it from the product
    if (dim > dag::kElementCountMax)
      return fail(ErrorCode::OutOfRange, who(proto) + " has shape " + to_string(spec.shape));
  auto count = dag::checked_element_count(spec.shape);
  if (!count) return fail(count.error().within(who(proto)));
  return spec;
}

Result<Tensor> tensor_from_proto(const Proto& proto, const ImportLimits& limits) {
  WEFT_TRY(TensorSpec spec, tensor_spec(proto, limits));
  if (proto.data_location() == Proto::EXTERNAL || proto.external_data_size() > 0)
    return fail(
        ErrorCode::PermissionDenied,
        who(proto) +
            " keeps its data in another file, which only an initializer of a model read from a path may do");
  if (proto.has_segment()) return fail(ErrorCode::Unsupported, who(proto) + " is split into segments");
  const int64_t count = spec.element_count();
  if (proto.has_raw_data()) {
    if (all_typed_counts(proto) > 0) return corrupted(proto, "has raw data and typed data at once");
    if (static_cast<int64_t>(proto.raw_data().size()) != stored_bytes(proto, spec))
      return corrupted(proto, "claims " + to_string(spec) + ", " + std::to_string(stored_bytes(proto, spec)) +
                                  " bytes, but holds " + std::to_string(proto.raw_data().size()));
    Tensor tensor = tensor_from_stored(
        proto, spec, std::as_bytes(std::span(proto.raw_data().data(), proto.raw_data().size())));
    normalise_bools(tensor);
    return tensor;
  }
  if (is_four_bit(proto)) return four_bit_from_typed(proto, spec);
  const int have = typed_count(proto, spec.dtype);
  if (have != all_typed_counts(proto))
    return corrupted(proto, "has data in a field of another type than it claims");
  if (have != count)
    return corrupted(proto, "claims " + to_string(spec) + ", " + std::to_string(count) +
                                " elements, but holds " + std::to_string(have));
  Tensor tensor(spec);
  WEFT_TRY_STATUS(copy_typed(proto, tensor));
  normalise_bools(tensor);
  return tensor;
}

void normalise_bools(Tensor& tensor) {
  if (tensor.dtype() != DType::Bool) return;
  for (uint8_t& value : tensor.mutable_as<uint8_t>()) value = value != 0;
}

void store_in_proto(const Tensor& tensor, bool raw, Proto& proto) {
  if (raw && is_four_bit(proto)) {
    const auto stored = stored_form(proto, tensor);
    proto.set_raw_data(stored.data(), stored.size());
    return;
  }
  if (raw) {
    proto.set_raw_data(tensor.bytes().data(), tensor.bytes().size());
    return;
  }
  if (is_four_bit(proto)) return;  // never trained: what the file holds stays
  const auto count = static_cast<int>(tensor.element_count());
  WEFT_CHECK(typed_count(proto, tensor.dtype()) == count);
  switch (tensor.dtype()) {
    case DType::F32:
      for (int i = 0; i < count; ++i) proto.set_float_data(i, tensor.as<float>()[static_cast<size_t>(i)]);
      return;
    case DType::F64:
      for (int i = 0; i < count; ++i) proto.set_double_data(i, tensor.as<double>()[static_cast<size_t>(i)]);
      return;
    case DType::F16:
    case DType::BF16:
      for (int i = 0; i < count; ++i) proto.set_int32_data(i, tensor.as<uint16_t>()[static_cast<size_t>(i)]);
      return;
    default:
      return;  // integers are never trained: what the file holds stays
  }
}

}  // namespace weft::onnx
