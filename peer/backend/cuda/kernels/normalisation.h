// Batch and layer normalisation.
#pragma once

#include "peer/backend/cuda/kernels/lines.h"

namespace weft::peer::cuda {

// ---- batch: x[samples, channels, positions] ----

// Sums over all of a channel begin as entries, each over one piece of it. A block makes one entry of a
// channel's samples and positions in one row, or, across (few positions: neighbouring threads on neighbouring
// columns of [samples, channels * positions]), one entry for each of kAcross columns of `piece` samples.
struct Channels {
  int64_t samples = 1, channels = 1, positions = 1;
  int64_t piece = 1, pieces = 1;
  int32_t across = 0;
};
inline constexpr int32_t kAcross = 32;
// What a thread holds of a piece: piece is at most so many times the block's threads (by kAcross, across).
inline constexpr int32_t kHeldOfPiece = 16;

constexpr int64_t entries_count(const Channels& c) {
  return c.channels * c.pieces * (c.across != 0 ? c.positions : 1);
}

// Of each entry: mean, and sum of squares of distances from it.
struct ChannelMoments {
  Channels c;
  Array<const float> x;
  Array<float> means, squares;
};
extern const EntryOf<ChannelMoments> k_channel_moments, k_channel_moments_across;
// A warp a channel: mean and (population) variance; factor = scale / sqrt(variance + epsilon).
struct ChannelStatistics {
  Channels c;
  Array<const float> means, squares, scale;
  Array<float> mean, variance, factor;
  float epsilon;
};
extern const EntryOf<ChannelStatistics> k_channel_statistics;
// factor = scale / sqrt(variance + epsilon)
struct ChannelFactors {
  Array<const float> scale, variance;
  Array<float> factor;
  float epsilon;
};
extern const EntryOf<ChannelFactors> k_channel_factors;
// y = (x - mean) factor + bias; y may be x. kAppliedByBlock elements a block.
struct ChannelApply {
  int64_t channels, positions;
  Array<const float> x, mean, factor, bias;
  Array<float> y;
};
inline constexpr int64_t kAppliedByBlock = 1024;
extern const EntryOf<ChannelApply> k_channel_apply;

// Of each entry: sum of dy, and of dy (x - mean).
struct ChannelGradSums {
  Channels c;
  Array<const float> dy, x, mean;
  Array<float> sums, products;
};
extern const EntryOf<ChannelGradSums> k_channel_grad_sums, k_channel_grad_sums_across;
// A warp a channel.
struct ChannelGradStatistics {
  Channels c;
  Array<const float> sums, products, scale, variance;
  Array<float> dscale, dbias, factor, mean_dy, slope;
  float epsilon;
};
extern const EntryOf<ChannelGradStatistics> k_channel_grad_statistics;
// dx = factor (dy - mean_dy - (x - mean) slope); dx may be dy.
struct ChannelGradApply {
  int64_t channels, positions;
  Array<const float> dy, x, mean, factor, mean_dy, slope;
  Array<float> dx;
};
extern const EntryOf<ChannelGradApply> k_channel_grad_apply;

// ---- layer ----

// Of each line: y = (x - mean) rstd scale + bias; y may be x. Scale and bias may be absent.
struct LayerNorm {
  Lines lines;  // side by side, in one piece
  Array<const float> x, scale, bias;
  Array<float> y, mean, rstd;
  float epsilon;
};
// In LineForms.
extern const EntryOf<LayerNorm> k_layer_norm, k_layer_norm_warp_8, k_layer_norm_warp_32, k_layer_norm_block_8,
    k_layer_norm_block_16;

// A block goes through `rows_by_block` lines, and leaves the sums over these for dscale and dbias:
// [blocks, width] each. dx may be dy.
struct LayerNormGrad {
  int64_t rows, width, rows_by_block;
  Array<const float> dy, x, scale, mean, rstd;
  Array<float> dx, dscale_parts, dbias_parts;
};
// Any width; and with the line and the sums in registers, so many elements a thread.
extern const EntryOf<LayerNormGrad> k_layer_norm_grad, k_layer_norm_grad_4, k_layer_norm_grad_16;

}  // namespace weft::peer::cuda
