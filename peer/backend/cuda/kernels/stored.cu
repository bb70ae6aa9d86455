#include "peer/backend/cuda/kernels/device_code.h"
#include "peer/backend/cuda/kernels/elements.cuh"
#include "peer/backend/cuda/kernels/moves.cuh"
#include "peer/backend/cuda/kernels/stored.h"

namespace weft::peer::cuda {
namespace {

using elements::Brain;
using elements::Half;

__device__ __forceinline__ float float_of(const StoredArray& from, StoredType type, int64_t i) {
  if (type == StoredType::F16) return elements::widened(Half{from.halves[i]});
  if (type == StoredType::BF16) return elements::widened(Brain{from.halves[i]});
  return from.singles[i];
}
__device__ __forceinline__ float integer_of(const Array<const uint8_t>& from, const WidenStored& p,
                                            int32_t bits, int64_t i) {
  const bool is_signed = p.type == StoredType::I8;
  if (bits == 8)
    return is_signed ? static_cast<float>(static_cast<int8_t>(from[i])) : static_cast<float>(from[i]);
  const int32_t four = (from[i / 2] >> (i % 2 * 4)) & 15, flip = is_signed ? 8 : 0;
  return static_cast<float>((four ^ flip) - flip);
}
__device__ __forceinline__ float nearest(float x, StoredType type) {
  if (type == StoredType::F16) return elements::widened(elements::narrowed(x, Half{}));
  if (type == StoredType::BF16) return elements::widened(elements::narrowed(x, Brain{}));
  return x;
}

__device__ __forceinline__ float number_at(const WidenStored& p, uint32_t row, uint32_t column) {
  const int64_t at = int64_t{row} * p.columns.divisor + column;
  if (p.type != StoredType::I8 && p.type != StoredType::U8) return float_of(p.numbers, p.type, at);
  const int64_t block =
      int64_t{divided(row, p.block_rows)} * p.scale_columns + divided(column, p.block_columns);
  const float zero =
      p.has_zero ? integer_of(p.zero, p, p.zero_bits, block) : static_cast<float>(p.zero_of_all);
  const float scale = float_of(p.scale, p.scale_type, block);
  return nearest((integer_of(p.numbers.bytes, p, p.bits, at) - zero) * scale, p.rounded);
}

}  // namespace

__global__ void __launch_bounds__(kMoveThreads) widen_stored(WidenStored p) {
  float values[kMovesEach] = {};
  move_each(
      p.count,
      [&](int k, uint32_t i) {
        const uint32_t column = take_remainder(i, p.columns);
        const int64_t row = p.picks ? resolved(p.indices, int64_t{i}, p.rows) : int64_t{i};
        values[k] = row < 0 ? math::from_bits(0x7fc00000) : number_at(p, static_cast<uint32_t>(row), column);
      },
      [&](int k, uint32_t i) { p.to[i] = values[k]; });
}
WEFT_KERNEL_ENTRY(widen_stored, WidenStored)

}  // namespace weft::peer::cuda
