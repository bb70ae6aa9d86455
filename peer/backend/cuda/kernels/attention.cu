#include "peer/backend/cuda/kernels/device_code.h"

#include "peer/backend/cuda/kernels/attention.h"
#include "peer/backend/cuda/kernels/moves.cuh"

namespace weft::peer::cuda {
namespace {

__device__ __forceinline__ int64_t place_of(const ScorePlaces& places, uint32_t row, uint32_t column) {
  return places.first + int64_t{row} * places.row + int64_t{column} * places.column;
}

}  // namespace

__global__ void __launch_bounds__(kMoveThreads) attention_scores(AttentionScores p) {
  float values[kMovesEach] = {};
  move_each(
      p.count,
      [&](int k, uint32_t i) {
        float score = p.scores[i] * p.alpha;
        const uint32_t column = take_remainder(i, p.columns);
        if (p.bias.present()) score += p.bias[place_of(p.of_bias, i, column)];
        if (p.keep.present() && p.keep[place_of(p.of_keep, i, column)] == 0) score = p.fill;
        values[k] = score;
      },
      [&](int k, uint32_t i) { p.scores[i] = values[k]; });
}
WEFT_KERNEL_ENTRY(attention_scores, AttentionScores)

__global__ void __launch_bounds__(kMoveThreads) attention_slopes(AttentionSlopes p) {
  float values[kMovesEach] = {};
  move_each(
      p.count,
      [&](int k, uint32_t i) {
        const float slope = p.slopes[i] * p.alpha;
        const uint32_t column = take_remainder(i, p.columns);
        const bool kept = !p.keep.present() || p.keep[place_of(p.of_keep, i, column)] != 0;
        values[k] = !kept || (p.zero_rows != 0 && slope != slope) ? 0.0f : slope;
      },
      [&](int k, uint32_t i) { p.slopes[i] = values[k]; });
}
WEFT_KERNEL_ENTRY(attention_slopes, AttentionSlopes)

}  // namespace weft::peer::cuda
