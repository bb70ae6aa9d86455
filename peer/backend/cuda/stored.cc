#include "peer/backend/cuda/stored.h"

#include "base/check.h"

namespace weft::peer::cuda {
namespace {

StoredType type_of(dag::DType dtype) {
  switch (dtype) {
    case dag::DType::F32:
      return StoredType::F32;
    case dag::DType::F16:
      return StoredType::F16;
    case dag::DType::BF16:
      return StoredType::BF16;
    case dag::DType::I8:
      return StoredType::I8;
    default:
      WEFT_CHECK(dtype == dag::DType::U8);
      return StoredType::U8;
  }
}

StoredArray array_of(const Region& region, dag::DType dtype) {
  if (dtype == dag::DType::F32) return {.singles = region.as<const float>(), .halves = {}, .bytes = {}};
  if (is_half(dtype)) return {.singles = {}, .halves = region.as<const uint16_t>(), .bytes = {}};
  return {.singles = {}, .halves = {}, .bytes = region.as<const uint8_t>()};
}

}  // namespace

StoredOperand::StoredOperand(const KernelRequest& request, size_t first)
    : matrix_(stored_matrix_of(request.graph, request.op, first)), numbers_(operand(request, first)) {
  if (!matrix_.is_half()) scale_ = operand(request, first + 1);
  if (matrix_.has_zero) zero_ = operand(request, first + 2);
}

bool StoredOperand::can_widen(int64_t count) const {
  return count <= kCountMax && matrix_.rows <= kCountMax && matrix_.columns <= kCountMax;
}

WidenStored StoredOperand::parameters(const Call& call, const Array<float>& to) const {
  WidenStored p{};
  p.numbers = array_of(numbers_.in(call), matrix_.numbers);
  if (!matrix_.is_half()) p.scale = array_of(scale_.in(call), matrix_.scale);
  if (matrix_.has_zero) p.zero = zero_.in(call).as<const uint8_t>();
  p.to = to;
  p.type = type_of(matrix_.numbers);
  p.scale_type = type_of(matrix_.scale);
  p.rounded = type_of(matrix_.rounded);
  p.bits = static_cast<int32_t>(matrix_.bits);
  p.zero_bits = static_cast<int32_t>(matrix_.zero_bits);
  p.zero_of_all = static_cast<int32_t>(matrix_.zero_of_all);
  p.has_zero = matrix_.has_zero ? 1 : 0;
  p.count = static_cast<uint32_t>(to.count);
  p.rows = matrix_.rows;
  p.columns = divider(matrix_.columns);
  p.block_rows = divider(matrix_.block_rows);
  p.block_columns = divider(matrix_.block_columns);
  p.scale_columns = matrix_.scale_columns();
  return p;
}

Status StoredOperand::widen(const Call& call, const Array<float>& to) const {
  return call.launch(k_widen_stored, grid_of_moves(to.count), parameters(call, to));
}

Status StoredOperand::widen_rows(const Call& call, const Indices& indices, const Array<float>& to) const {
  WidenStored p = parameters(call, to);
  p.indices = indices;
  p.picks = 1;
  return call.launch(k_widen_stored, grid_of_moves(to.count), p);
}

KernelResult make_stored_weight(const KernelRequest& request) {
  const StoredOperand stored(request, 0);
  const int64_t count = request.out_count();
  if (!stored.can_widen(count)) return request.decline();
  const int y = request.output_slot(0);
  if (!request.has(3))
    return request.make("widen",
                        [=](const Call& call) { return stored.widen(call, call.out<float>(y, count)); });
  const IndexOperand indices = index_operand(request, 3);
  return request.make("widen rows", [=](const Call& call) {
    return stored.widen_rows(call, indices.in(call), call.out<float>(y, count));
  });
}

}  // namespace weft::peer::cuda
