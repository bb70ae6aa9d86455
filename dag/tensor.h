// Tensors as values: dtype and shape (TensorSpec), and host data with them (Tensor).
// Row-major, dense, little-endian, element sizes as in ONNX.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "base/units.h"

namespace weft::dag {

enum class DType : uint8_t { F32, F64, F16, BF16, I8, U8, I16, U16, I32, U32, I64, U64, Bool };

int64_t element_size(DType dtype);  // bytes
std::string_view to_string(DType dtype);
Result<DType> parse_dtype(std::string_view text);
bool is_float(DType dtype);
bool is_half(DType dtype);     // F16, BF16
bool is_integer(DType dtype);  // not Bool

using Shape = std::vector<int64_t>;

// No tensor may have more elements than this, whatever a file says: sizes in bytes then fit int64 with room.
inline constexpr int64_t kElementCountMax = int64_t{1} << 40;

std::string to_string(const Shape& shape);  // "[2,3]"
// Product of the dims; kOutOfRange when a dim is negative or the product exceeds kElementCountMax.
Result<int64_t> checked_element_count(const Shape& shape);

struct TensorSpec {
  DType dtype = DType::F32;
  Shape shape;

  int64_t rank() const { return static_cast<int64_t>(shape.size()); }
  // REQUIRES: the shape passed checked_element_count once (graph values have).
  int64_t element_count() const;
  Bytes bytes() const { return {element_count() * element_size(dtype)}; }
  bool operator==(const TensorSpec&) const = default;
};
std::string to_string(const TensorSpec& spec);  // "f32[2,3]"

// Host data, immutable once shared: copies are cheap and share the bytes.
class Tensor {
 public:
  Tensor() = default;
  // Zero-filled.
  explicit Tensor(TensorSpec spec);
  // REQUIRES: bytes.size() == spec.bytes().
  Tensor(TensorSpec spec, std::span<const std::byte> bytes);
  // Takes a buffer over, without a copy: of a message, of staging memory. It has at least spec.bytes() and
  // begins at a multiple of the element size; its deleter gives it back. See allocate_tensor_bytes().
  Tensor(TensorSpec spec, std::shared_ptr<std::byte[]> buffer);

  const TensorSpec& spec() const { return spec_; }
  const Shape& shape() const { return spec_.shape; }
  DType dtype() const { return spec_.dtype; }
  int64_t element_count() const { return spec_.element_count(); }
  std::span<const std::byte> bytes() const { return {data_.get(), static_cast<size_t>(spec_.bytes().value)}; }
  // Only for the one who made it, before it is shared.
  std::span<std::byte> mutable_bytes() { return {data_.get(), static_cast<size_t>(spec_.bytes().value)}; }

  // REQUIRES: sizeof(T) is the element size.
  template <typename T>
  std::span<const T> as() const {
    WEFT_CHECK(static_cast<int64_t>(sizeof(T)) == element_size(spec_.dtype));
    return {reinterpret_cast<const T*>(data_.get()), static_cast<size_t>(element_count())};
  }
  template <typename T>
  std::span<T> mutable_as() {
    WEFT_CHECK(static_cast<int64_t>(sizeof(T)) == element_size(spec_.dtype));
    return {reinterpret_cast<T*>(data_.get()), static_cast<size_t>(element_count())};
  }
  // The same bytes under another shape. REQUIRES: equal element counts.
  Tensor reshaped(Shape shape) const;
  // `count` elements from `first` on, in a row: they share the bytes. REQUIRES: they are there.
  Tensor elements(int64_t first, int64_t count) const;
  // Whether anybody else holds the bytes. Others may take hold of them only through this tensor.
  bool is_shared() const { return data_.use_count() > 1; }

 private:
  TensorSpec spec_;
  std::shared_ptr<std::byte[]> data_;
};

// A buffer for Tensor, aligned for every kernel; its contents are undefined.
std::shared_ptr<std::byte[]> allocate_tensor_bytes(size_t size);

Tensor make_tensor(Shape shape, std::span<const float> values);
Tensor make_tensor(Shape shape, std::span<const int64_t> values);
Tensor make_scalar(DType dtype, double value);

// Conversion by value, as a C cast would (float to bool: non-zero; to F16 and BF16: round to nearest even).
// Exact for double <-> the wide types; integers travel through int64 where both sides are integers.
std::vector<double> to_doubles(const Tensor& tensor);
std::vector<int64_t> to_int64s(const Tensor& tensor);
Tensor from_doubles(TensorSpec spec, std::span<const double> values);
Tensor from_int64s(TensorSpec spec, std::span<const int64_t> values);

// Whether `wide` is what a tensor of `half` becomes in float32: its master while it is trained.
bool is_widened(const TensorSpec& half, const TensorSpec& wide);
// The same numbers as F32. REQUIRES: is_half(tensor.dtype()).
Tensor widen_half(const Tensor& tensor);
// The nearest numbers of a half-precision format. REQUIRES: an F32 tensor, is_half(dtype).
Tensor round_to_half(const Tensor& tensor, DType dtype);

// Half-precision formats, round to nearest even; NaN stays NaN.
uint16_t f16_from_float(float value);
float float_from_f16(uint16_t bits);
uint16_t bf16_from_float(float value);
float float_from_bf16(uint16_t bits);

}  // namespace weft::dag
