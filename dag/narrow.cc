#include "dag/narrow.h"

#include <algorithm>
#include <string>
#include <vector>

namespace weft::dag {
namespace {

// Shortest first.
constexpr struct {
  DType dtype;
  int64_t least, most;
} kNarrower[] = {{DType::U8, 0, UINT8_MAX},
                 {DType::I8, INT8_MIN, INT8_MAX},
                 {DType::U16, 0, UINT16_MAX},
                 {DType::I16, INT16_MIN, INT16_MAX},
                 {DType::I32, INT32_MIN, INT32_MAX}};

bool is_narrower(DType narrow, DType wide) {
  return (wide == DType::I32 || wide == DType::I64) && element_size(narrow) < element_size(wide) &&
         std::ranges::any_of(kNarrower, [&](const auto& one) { return one.dtype == narrow; });
}

}  // namespace

Tensor narrowed(const Tensor& tensor) {
  if (tensor.element_count() == 0 || !is_narrower(DType::U8, tensor.dtype())) return tensor;
  const std::vector<int64_t> values = to_int64s(tensor);
  const auto [least, most] = std::ranges::minmax_element(values);
  for (const auto& one : kNarrower)
    if (is_narrower(one.dtype, tensor.dtype()) && *least >= one.least && *most <= one.most)
      return from_int64s({one.dtype, tensor.shape()}, values);
  return tensor;
}

Result<Tensor> widened(const Tensor& tensor, const TensorSpec& spec) {
  if (tensor.spec() == spec) return tensor;
  if (tensor.shape() != spec.shape || !is_narrower(tensor.dtype(), spec.dtype))
    return fail(ErrorCode::InvalidArgument,
                "it is " + to_string(tensor.spec()) + ", expected " + to_string(spec));
  return from_int64s(spec, to_int64s(tensor));
}

}  // namespace weft::dag
