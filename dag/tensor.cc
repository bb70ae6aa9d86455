#include "dag/tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

namespace weft::dag {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int64_t size;
};
constexpr DTypeRow kDTypes[] = {
    {DType::F32, "f32", 4},   {DType::F64, "f64", 8}, {DType::F16, "f16", 2}, {DType::BF16, "bf16", 2},
    {DType::I8, "i8", 1},     {DType::U8, "u8", 1},   {DType::I16, "i16", 2}, {DType::U16, "u16", 2},
    {DType::I32, "i32", 4},   {DType::U32, "u32", 4}, {DType::I64, "i64", 8}, {DType::U64, "u64", 8},
    {DType::Bool, "bool", 1},
};

constexpr size_t kAlignment = 64;  // a cache line, and the widest vector register

std::shared_ptr<std::byte[]> allocate_zeroed(size_t size) {
  auto bytes = allocate_tensor_bytes(size);
  std::memset(bytes.get(), 0, size);
  return bytes;
}

// Calls `visit(example of the storage type)`: one place that maps DType to a C++ type.
template <typename Visitor>
void visit_storage(DType dtype, Visitor&& visit) {
  switch (dtype) {
    case DType::F32:
      return visit(float{});
    case DType::F64:
      return visit(double{});
    case DType::F16:
    case DType::BF16:
      return visit(uint16_t{});
    case DType::I8:
      return visit(int8_t{});
    case DType::U8:
      return visit(uint8_t{});
    case DType::I16:
      return visit(int16_t{});
    case DType::U16:
      return visit(uint16_t{});
    case DType::I32:
      return visit(int32_t{});
    case DType::U32:
      return visit(uint32_t{});
    case DType::I64:
      return visit(int64_t{});
    case DType::U64:
      return visit(uint64_t{});
    case DType::Bool:
      return visit(uint8_t{});
  }
}

template <typename To>
To saturating_from_double(double value) {
  if constexpr (std::is_floating_point_v<To>) {
    return static_cast<To>(value);
  } else {
    if (std::isnan(value)) return 0;
    constexpr double kLow = static_cast<double>(std::numeric_limits<To>::min());
    constexpr double kHigh = static_cast<double>(std::numeric_limits<To>::max());
    if (value <= kLow) return std::numeric_limits<To>::min();
    if (value >= kHigh) return std::numeric_limits<To>::max();
    return static_cast<To>(value);
  }
}

}  // namespace

int64_t element_size(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].size; }
std::string_view to_string(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

Result<DType> parse_dtype(std::string_view text) {
  for (const auto& row : kDTypes)
    if (row.name == text) return row.dtype;
  return fail(ErrorCode::InvalidArgument, "unknown dtype '" + std::string(text) + "'");
}

bool is_float(DType dtype) { return dtype == DType::F32 || dtype == DType::F64 || is_half(dtype); }
bool is_half(DType dtype) { return dtype == DType::F16 || dtype == DType::BF16; }
bool is_integer(DType dtype) { return !is_float(dtype) && dtype != DType::Bool; }

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? "," : "") + std::to_string(shape[i]);
  return text + "]";
}

Result<int64_t> checked_element_count(const Shape& shape) {
  int64_t bound = 1;  // zeros aside: a product of any of the dims, such as a stride, then fits too
  bool empty = false;
  for (const int64_t dim : shape) {
    if (dim < 0) return fail(ErrorCode::OutOfRange, "shape " + to_string(shape) + " has a negative dim");
    if (dim != 0 && bound > kElementCountMax / dim)
      return fail(ErrorCode::OutOfRange, "shape " + to_string(shape) + " has more than 2^40 elements");
    empty = empty || dim == 0;
    bound *= dim == 0 ? 1 : dim;
  }
  return empty ? 0 : bound;
}

int64_t TensorSpec::element_count() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

std::string to_string(const TensorSpec& spec) {
  return std::string(to_string(spec.dtype)) + to_string(spec.shape);
}

std::shared_ptr<std::byte[]> allocate_tensor_bytes(size_t size) {
  const size_t padded = (size + kAlignment) / kAlignment * kAlignment;
  auto* bytes = static_cast<std::byte*>(::operator new (padded, std::align_val_t{kAlignment}));
  return {bytes, [](std::byte* p) { ::operator delete (p, std::align_val_t{kAlignment}); }};
}

Tensor::Tensor(TensorSpec spec)
    : spec_(std::move(spec)), data_(allocate_zeroed(static_cast<size_t>(spec_.bytes().value))) {}

Tensor::Tensor(TensorSpec spec, std::span<const std::byte> bytes)
    : spec_(std::move(spec)), data_(allocate_tensor_bytes(bytes.size())) {
  WEFT_CHECK(static_cast<int64_t>(bytes.size()) == spec_.bytes().value);
  if (!bytes.empty()) std::memcpy(data_.get(), bytes.data(), bytes.size());
}

Tensor::Tensor(TensorSpec spec, std::shared_ptr<std::byte[]> buffer)
    : spec_(std::move(spec)), data_(std::move(buffer)) {
  WEFT_CHECK(reinterpret_cast<uintptr_t>(data_.get()) % static_cast<uintptr_t>(element_size(dtype())) == 0);
}

Tensor Tensor::reshaped(Shape shape) const {
  Tensor other = *this;
  other.spec_.shape = std::move(shape);
  WEFT_CHECK(other.element_count() == element_count());
  return other;
}

Tensor Tensor::elements(int64_t first, int64_t count) const {
  WEFT_CHECK(first >= 0 && count >= 0 && first + count <= element_count());
  Tensor other;
  other.spec_ = {spec_.dtype, {count}};
  other.data_ = {data_, data_.get() + first * element_size(spec_.dtype)};
  return other;
}

Tensor make_tensor(Shape shape, std::span<const float> values) {
  return Tensor({DType::F32, std::move(shape)}, std::as_bytes(values));
}
Tensor make_tensor(Shape shape, std::span<const int64_t> values) {
  return Tensor({DType::I64, std::move(shape)}, std::as_bytes(values));
}
Tensor make_scalar(DType dtype, double value) { return from_doubles({dtype, {}}, std::span(&value, 1)); }

std::vector<double> to_doubles(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.element_count()));
  visit_storage(tensor.dtype(), [&](auto example) {
    using T = decltype(example);
    const auto source = tensor.as<T>();
    for (size_t i = 0; i < values.size(); ++i) {
      if (tensor.dtype() == DType::F16)
        values[i] = float_from_f16(static_cast<uint16_t>(source[i]));
      else if (tensor.dtype() == DType::BF16)
        values[i] = float_from_bf16(static_cast<uint16_t>(source[i]));
      else
        values[i] = static_cast<double>(source[i]);
    }
  });
  return values;
}

std::vector<int64_t> to_int64s(const Tensor& tensor) {
  if (is_float(tensor.dtype())) {
    const auto doubles = to_doubles(tensor);
    std::vector<int64_t> values(doubles.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = saturating_from_double<int64_t>(doubles[i]);
    return values;
  }
  std::vector<int64_t> values(static_cast<size_t>(tensor.element_count()));
  visit_storage(tensor.dtype(), [&](auto example) {
    using T = decltype(example);
    const auto source = tensor.as<T>();
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(source[i]);
  });
  return values;
}

Tensor from_doubles(TensorSpec spec, std::span<const double> values) {
  Tensor tensor(std::move(spec));
  WEFT_CHECK(static_cast<int64_t>(values.size()) == tensor.element_count());
  visit_storage(tensor.dtype(), [&](auto example) {
    using T = decltype(example);
    auto target = tensor.mutable_as<T>();
    for (size_t i = 0; i < values.size(); ++i) {
      if (tensor.dtype() == DType::F16)
        target[i] = static_cast<T>(f16_from_float(static_cast<float>(values[i])));
      else if (tensor.dtype() == DType::BF16)
        target[i] = static_cast<T>(bf16_from_float(static_cast<float>(values[i])));
      else if (tensor.dtype() == DType::Bool)
        target[i] = static_cast<T>(values[i] != 0 ? 1 : 0);
      else
        target[i] = saturating_from_double<T>(values[i]);
    }
  });
  return tensor;
}

Tensor from_int64s(TensorSpec spec, std::span<const int64_t> values) {
  if (is_float(spec.dtype))
    return from_doubles(std::move(spec), std::vector<double>(values.begin(), values.end()));
  Tensor tensor(std::move(spec));
  WEFT_CHECK(static_cast<int64_t>(values.size()) == tensor.element_count());
  visit_storage(tensor.dtype(), [&](auto example) {
    using T = decltype(example);
    auto target = tensor.mutable_as<T>();
    const bool is_bool = tensor.dtype() == DType::Bool;
    for (size_t i = 0; i < values.size(); ++i)
      target[i] = is_bool ? static_cast<T>(values[i] != 0 ? 1 : 0) : static_cast<T>(values[i]);
  });
  return tensor;
}

uint16_t bf16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
float float_from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t f16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);   // NaN
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // rounds beyond 65504
  if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 aligns the mantissa, the FPU rounds to even
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}
float float_from_f16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7FFFu;
  if (magnitude > 0x7C00u) return std::numeric_limits<float>::quiet_NaN();
  uint32_t wide = (magnitude << 13) + (112u << 23);  // the exponents' biases are 15 and 127
  if (magnitude == 0x7C00u) wide = 0x7F800000u;
  if (magnitude < 0x400u) wide = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  return std::bit_cast<float>(wide | sign);
}

bool is_widened(const TensorSpec& half, const TensorSpec& wide) {
  return is_half(half.dtype) && wide == TensorSpec{DType::F32, half.shape};
}

Tensor widen_half(const Tensor& tensor) {
  WEFT_CHECK(is_half(tensor.dtype()));
  const auto widen = tensor.dtype() == DType::F16 ? float_from_f16 : float_from_bf16;
  Tensor wide({DType::F32, tensor.shape()});
  std::transform(tensor.as<uint16_t>().begin(), tensor.as<uint16_t>().end(), wide.mutable_as<float>().begin(),
                 widen);
  return wide;
}

Tensor round_to_half(const Tensor& tensor, DType dtype) {
  WEFT_CHECK(tensor.dtype() == DType::F32 && is_half(dtype));
  const auto narrow = dtype == DType::F16 ? f16_from_float : bf16_from_float;
  Tensor half({dtype, tensor.shape()});
  std::transform(tensor.as<float>().begin(), tensor.as<float>().end(), half.mutable_as<uint16_t>().begin(),
                 narrow);
  return half;
}

}  // namespace weft::dag
