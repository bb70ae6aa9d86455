#include "peer/backend/cuda/kernels/block.cuh"
#include "peer/backend/cuda/kernels/normalisation.h"

namespace weft::peer::cuda {
namespace {

__device__ __forceinline__ int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

__device__ __forceinline__ float rstd_of(float variance, float epsilon) {
  return 1.0f / sqrtf(variance + epsilon);
}

// ---- entries of channels ----

// The elements of a channel's samples and positions, from one on in strides of the block: a division at the
// start, none on the way.
struct Walk {
  int64_t sample, position;
  int64_t samples_a_step, positions_a_step;

  __device__ __forceinline__ Walk(const Channels& c, int64_t begin)
      : sample(begin / c.positions),
        position(begin % c.positions),
        samples_a_step(blockDim.x / c.positions),
        positions_a_step(blockDim.x % c.positions) {}
  __device__ __forceinline__ int64_t offset(const Channels& c, int64_t channel) const {
    return (sample * c.channels + channel) * c.positions + position;
  }
  __device__ __forceinline__ void step(const Channels& c) {
    sample += samples_a_step;
    position += positions_a_step;
    if (position >= c.positions) {
      position -= c.positions;
      ++sample;
    }
  }
};

// A block's piece of one channel. Neighbouring blocks have neighbouring channels: what a memory transaction
// brings of the next one is then wanted soon.
struct ChannelPiece {
  int64_t channel, entry, begin, count;

  __device__ __forceinline__ explicit ChannelPiece(const Channels& c) {
    const int64_t piece = blockIdx.x / c.channels;
    channel = blockIdx.x % c.channels;
    entry = channel * c.pieces + piece;
    begin = piece * c.piece;
    count = smaller(c.piece, c.samples * c.positions - begin);
  }
};

// A thread's column of [samples, channels * positions] and its samples of the block's piece.
struct ColumnPiece {
  int64_t width, column, entry, begin, count;
  int32_t first;
  bool there;

  static constexpr int32_t kStep = kLineThreads / kAcross;
  __device__ __forceinline__ explicit ColumnPiece(const Channels& c) {
    width = c.channels * c.positions;
    const int64_t tiles = (width + kAcross - 1) / kAcross, piece = blockIdx.x / tiles;
    column = blockIdx.x % tiles * kAcross + threadIdx.x % kAcross;
    there = column < width;
    entry = piece * width + column;
    begin = piece * c.piece;
    count = smaller(c.piece, c.samples - begin);
    first = static_cast<int32_t>(threadIdx.x / kAcross);
  }
  __device__ __forceinline__ int64_t offset(int64_t sample) const {
    return (begin + sample) * width + column;
  }
};

// Where entry `i` of a channel is, and how many elements it is over.
struct EntryPlace {
  int64_t index;
  float count;

  __device__ __forceinline__ EntryPlace(const Channels& c, int64_t channel, int64_t i) {
    const int64_t piece = c.across != 0 ? i / c.positions : i;
    index = c.across != 0 ? (piece * c.channels + channel) * c.positions + i % c.positions
                          : channel * c.pieces + piece;
    const int64_t total = c.across != 0 ? c.samples : c.samples * c.positions;
    count = static_cast<float>(smaller(c.piece, total - piece * c.piece));
  }
};
__device__ __forceinline__ int64_t entries_of_channel(const Channels& c) {
  return c.across != 0 ? c.pieces * c.positions : c.pieces;
}

// ---- what each element of a channel becomes ----

struct Normalise {
  float mean, factor, bias;
  __device__ __forceinline__ Normalise(const ChannelApply& p, int64_t channel)
      : mean(p.mean[channel]), factor(p.factor[channel]), bias(p.bias[channel]) {}
  __device__ __forceinline__ float operator()(float x) const { return (x - mean) * factor + bias; }
};
struct Slope {
  float mean, factor, mean_dy, slope;
  __device__ __forceinline__ Slope(const ChannelGradApply& p, int64_t channel)
      : mean(p.mean[channel]),
        factor(p.factor[channel]),
        mean_dy(p.mean_dy[channel]),
        slope(p.slope[channel]) {}
  __device__ __forceinline__ float operator()(float dy, float x) const {
    return factor * (dy - mean_dy - (x - mean) * slope);
  }
};

template <typename Parameters>
__device__ __forceinline__ int64_t channel_at(const Parameters& p, int64_t element) {
  return element / p.positions % p.channels;
}

}  // namespace

// ---- batch ----

__global__ void __launch_bounds__(kLineThreads) channel_moments(ChannelMoments p) {
  const ChannelPiece piece(p.c);
  Walk walk(p.c, piece.begin + threadIdx.x);
  float x[kHeldOfPiece];
  float sum = 0.0f, squares = 0.0f;
  const int32_t count = static_cast<int32_t>(piece.count), step = static_cast<int32_t>(blockDim.x);
  const int32_t first = static_cast<int32_t>(threadIdx.x);
  WEFT_UNROLL
  for (int k = 0; k < kHeldOfPiece; ++k) {
    x[k] = first + k * step < count ? p.x[walk.offset(p.c, piece.channel)] : 0.0f;
    sum += x[k];
    walk.step(p.c);
  }
  const float mean = block_sum(sum) / static_cast<float>(count);
  WEFT_UNROLL
  for (int k = 0; k < kHeldOfPiece; ++k)
    if (first + k * step < count) squares += (x[k] - mean) * (x[k] - mean);
  squares = block_sum(squares);
  if (threadIdx.x != 0) return;
  p.means[piece.entry] = mean;
  p.squares[piece.entry] = squares;
}
WEFT_KERNEL_ENTRY(channel_moments, ChannelMoments)

__global__ void __launch_bounds__(kLineThreads) channel_moments_across(ChannelMoments p) {
  const ColumnPiece piece(p.c);
  const int32_t count = piece.there ? static_cast<int32_t>(piece.count) : 0;
  float x[kHeldOfPiece];
  float sum = 0.0f, squares = 0.0f;
  WEFT_UNROLL
  for (int k = 0; k < kHeldOfPiece; ++k) {
    const int32_t sample = piece.first + k * ColumnPiece::kStep;
    x[k] = sample < count ? p.x[piece.offset(sample)] : 0.0f;
    sum += x[k];
  }
  const float mean = column_fold(sum, kAcross, SumOf()) / static_cast<float>(piece.count);
  WEFT_UNROLL
  for (int k = 0; k < kHeldOfPiece; ++k)
    if (piece.first + k * ColumnPiece::kStep < count) squares += (x[k] - mean) * (x[k] - mean);
  squares = column_fold(squares, kAcross, SumOf());
  if (!piece.there || piece.first != 0) return;
  p.means[piece.entry] = mean;
  p.squares[piece.entry] = squares;
}
WEFT_KERNEL_ENTRY(channel_moments_across, ChannelMoments)

// Sums in double, which is slow on most GPUs: of entries, not of elements.
__global__ void __launch_bounds__(kLineThreads) channel_statistics(ChannelStatistics p) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * (kLineThreads / 32) + threadIdx.x / 32;
  const int64_t lane = threadIdx.x % 32;
  const int64_t entries = channel < p.c.channels ? entries_of_channel(p.c) : 0;
  const double size = static_cast<double>(p.c.samples) * static_cast<double>(p.c.positions);
  double sum = 0, squares = 0;
  for (int64_t i = lane; i < entries; i += 32) {
    const EntryPlace entry(p.c, channel, i);
    sum += static_cast<double>(entry.count) * static_cast<double>(p.means[entry.index]);
  }
  const double mean = warp_fold(sum, SumOf()) / size;
  for (int64_t i = lane; i < entries; i += 32) {
    const EntryPlace entry(p.c, channel, i);
    const double off = static_cast<double>(p.means[entry.index]) - mean;
    squares += static_cast<double>(p.squares[entry.index]) + static_cast<double>(entry.count) * off * off;
  }
  const float variance = static_cast<float>(warp_fold(squares, SumOf()) / size);
  if (lane != 0 || channel >= p.c.channels) return;
  p.mean[channel] = static_cast<float>(mean);
  p.variance[channel] = variance;
  p.factor[channel] = p.scale[channel] * rstd_of(variance, p.epsilon);
}
WEFT_KERNEL_ENTRY(channel_statistics, ChannelStatistics)

__global__ void __launch_bounds__(kLineThreads) channel_factors(ChannelFactors p) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kLineThreads + threadIdx.x;
  if (channel < p.factor.count)
    p.factor[channel] = p.scale[channel] * rstd_of(p.variance[channel], p.epsilon);
}
WEFT_KERNEL_ENTRY(channel_factors, ChannelFactors)

__global__ void __launch_bounds__(kLineThreads) channel_apply(ChannelApply p) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kAppliedByBlock;
  if (p.positions % 4 == 0) {  // four elements are of one channel, and the last four are whole
    const int64_t i = begin + 4 * static_cast<int64_t>(threadIdx.x);
    if (i >= p.y.count) return;
    const Normalise of(p, channel_at(p, i));
    const Float4 x = load4(p.x, i);
    store4(p.y, i, {of(x.x), of(x.y), of(x.z), of(x.w)});
    return;
  }
  const int64_t end = smaller(p.y.count, begin + kAppliedByBlock);
  thread_map(
      begin + threadIdx.x, end, kLineThreads,
      [&](int64_t i) { return Normalise(p, channel_at(p, i))(p.x[i]); },
      [&](int64_t i, float y) { p.y[i] = y; });
}
WEFT_KERNEL_ENTRY(channel_apply, ChannelApply)

__global__ void __launch_bounds__(kLineThreads) channel_grad_sums(ChannelGradSums p) {
  const ChannelPiece piece(p.c);
  Walk walk(p.c, piece.begin + threadIdx.x);
  const float mean = p.mean[piece.channel];
  float sum = 0.0f, product = 0.0f;
  WEFT_UNROLL
  for (int k = 0; k < kHeldOfPiece; ++k) {
    if (threadIdx.x + static_cast<int64_t>(k) * blockDim.x < piece.count) {
      const int64_t at = walk.offset(p.c, piece.channel);
      const float dy = p.dy[at];
      sum += dy;
      product += dy * (p.x[at] - mean);
    }
    walk.step(p.c);
  }
  sum = block_sum(sum);
  product = block_sum(product);
  if (threadIdx.x != 0) return;
  p.sums[piece.entry] = sum;
  p.products[piece.entry] = product;
}
WEFT_KERNEL_ENTRY(channel_grad_sums, ChannelGradSums)

__global__ void __launch_bounds__(kLineThreads) channel_grad_sums_across(ChannelGradSums p) {
  const ColumnPiece piece(p.c);
  const int64_t count = piece.there ? piece.count : 0;
  const float mean = piece.there ? p.mean[piece.column / p.c.positions] : 0.0f;
  float sum = 0.0f, product = 0.0f;
  WEFT_UNROLL
  for (int k = 0; k < kHeldOfPiece; ++k) {
    const int64_t sample = piece.first + k * ColumnPiece::kStep;
    if (sample < count) {
      const float dy = p.dy[piece.offset(sample)];
      sum += dy;
      product += dy * (p.x[piece.offset(sample)] - mean);
    }
  }
  sum = column_fold(sum, kAcross, SumOf());
  product = column_fold(product, kAcross, SumOf());
  if (!piece.there || piece.first != 0) return;
  p.sums[piece.entry] = sum;
  p.products[piece.entry] = product;
}
WEFT_KERNEL_ENTRY(channel_grad_sums_across, ChannelGradSums)

__global__ void __launch_bounds__(kLineThreads) channel_grad_statistics(ChannelGradStatistics p) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * (kLineThreads / 32) + threadIdx.x / 32;
  const int64_t lane = threadIdx.x % 32;
  const int64_t entries = channel < p.c.channels ? entries_of_channel(p.c) : 0;
  double sum = 0, product = 0;
  for (int64_t i = lane; i < entries; i += 32) {
    const EntryPlace entry(p.c, channel, i);
    sum += static_cast<double>(p.sums[entry.index]);
    product += static_cast<double>(p.products[entry.index]);
  }
  const float dbias = static_cast<float>(warp_fold(sum, SumOf()));
  const float with_x = static_cast<float>(warp_fold(product, SumOf()));
  if (lane != 0 || channel >= p.c.channels) return;
  const float rstd = rstd_of(p.variance[channel], p.epsilon);
  const float size = static_cast<float>(p.c.samples) * static_cast<float>(p.c.positions);
  const float dscale = with_x * rstd;
  if (p.dbias.present()) p.dbias[channel] = dbias;
  if (p.dscale.present()) p.dscale[channel] = dscale;
  p.factor[channel] = p.scale[channel] * rstd;
  p.mean_dy[channel] = dbias / size;
  p.slope[channel] = dscale * rstd / size;
}
WEFT_KERNEL_ENTRY(channel_grad_statistics, ChannelGradStatistics)

__global__ void __launch_bounds__(kLineThreads) channel_grad_apply(ChannelGradApply p) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kAppliedByBlock;
  if (p.positions % 4 == 0) {
    const int64_t i = begin + 4 * static_cast<int64_t>(threadIdx.x);
    if (i >= p.dx.count) return;
    const Slope of(p, channel_at(p, i));
    const Float4 dy = load4(p.dy, i), x = load4(p.x, i);
    store4(p.dx, i, {of(dy.x, x.x), of(dy.y, x.y), of(dy.z, x.z), of(dy.w, x.w)});
    return;
  }
  const int64_t end = smaller(p.dx.count, begin + kAppliedByBlock);
  thread_map(
      begin + threadIdx.x, end, kLineThreads,
      [&](int64_t i) { return Slope(p, channel_at(p, i))(p.dy[i], p.x[i]); },
      [&](int64_t i, float dx) { p.dx[i] = dx; });
}
WEFT_KERNEL_ENTRY(channel_grad_apply, ChannelGradApply)

// ---- layer ----

namespace {

__device__ __forceinline__ float normalised(const LayerNorm& p, float x, float mean, float rstd, int64_t i) {
  float y = (x - mean) * rstd;
  if (p.scale.present()) y *= p.scale[i];
  return p.bias.present() ? y + p.bias[i] : y;
}

__device__ __forceinline__ void store_statistics(const LayerNorm& p, const Line& line, float mean,
                                                 float rstd) {
  if (!line.there || line.first != 0) return;
  p.mean[line.index] = mean;
  p.rstd[line.index] = rstd;
}

template <int32_t kLanes, int kHeld>
__device__ __forceinline__ void layer_norm_held(const LayerNorm& p) {
  const Line line = line_of(p.lines);
  const int32_t count = static_cast<int32_t>(line.count);
  const float size = static_cast<float>(p.lines.size);
  float x[kHeld];
  float sum = 0.0f, squares = 0.0f;
  WEFT_UNROLL
  for (int k = 0; k < kHeld; ++k) {
    const int32_t i = line.first + k * kLanes;
    x[k] = i < count ? p.x[line.base + i] : 0.0f;
    sum += x[k];
  }
  const float mean = lanes_fold<kLanes>(sum, 0.0f, SumOf()) / size;
  WEFT_UNROLL
  for (int k = 0; k < kHeld; ++k)
    if (line.first + k * kLanes < count) squares += (x[k] - mean) * (x[k] - mean);
  const float rstd = rstd_of(lanes_fold<kLanes>(squares, 0.0f, SumOf()) / size, p.epsilon);
  // All scales and biases are on their way before the first result is: a store might be to where they are.
  WEFT_UNROLL
  for (int k = 0; k < kHeld; ++k) {
    const int32_t i = line.first + k * kLanes;
    if (i < count) x[k] = normalised(p, x[k], mean, rstd, i);
  }
  WEFT_UNROLL
  for (int k = 0; k < kHeld; ++k) {
    const int32_t i = line.first + k * kLanes;
    if (i < count) p.y[line.base + i] = x[k];
  }
  store_statistics(p, line, mean, rstd);
}

// What the slopes of one line take off.
struct LineSlope {
  float mean, rstd;
  float mean_g, mean_gn;  // of g = dy scale, and of g n with n = (x - mean) rstd

  __device__ __forceinline__ float normal(float x) const { return (x - mean) * rstd; }
  __device__ __forceinline__ float operator()(float g, float x) const {
    return rstd * (g - mean_g - normal(x) * mean_gn);
  }
};

// One block's lines, each with its elements in the threads' registers, as are the sums over lines.
template <int kHeld>
__device__ __forceinline__ void layer_norm_grad_held(const LayerNormGrad& p) {
  const int32_t step = static_cast<int32_t>(blockDim.x), first = static_cast<int32_t>(threadIdx.x);
  const int32_t width = static_cast<int32_t>(p.width);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * p.rows_by_block;
  const int64_t end = smaller(p.rows, begin + p.rows_by_block);
  const float size = static_cast<float>(width);
  float dscale[kHeld], dbias[kHeld], scale[kHeld];
  WEFT_UNROLL
  for (int k = 0; k < kHeld; ++k) {
    dscale[k] = dbias[k] = 0.0f;
    scale[k] = p.scale.present() && first + k * step < width ? p.scale[first + k * step] : 1.0f;
  }
  for (int64_t row = begin; row < end; ++row) {
    LineSlope of{p.mean[row], p.rstd[row], 0.0f, 0.0f};
    float dy[kHeld], x[kHeld];
    float sum = 0.0f, product = 0.0f;
    WEFT_UNROLL
    for (int k = 0; k < kHeld; ++k) {
      const int32_t i = first + k * step;
      dy[k] = i < width ? p.dy[row * width + i] : 0.0f;
      x[k] = i < width ? p.x[row * width + i] : of.mean;
    }
    WEFT_UNROLL
    for (int k = 0; k < kHeld; ++k) {
      const float normal = of.normal(x[k]), g = dy[k] * scale[k];
      sum += g;
      product += g * normal;
      dscale[k] += dy[k] * normal;
      dbias[k] += dy[k];
    }
    of.mean_g = block_sum(sum) / size;
    of.mean_gn = block_sum(product) / size;
    WEFT_UNROLL
    for (int k = 0; k < kHeld; ++k) {
      const int32_t i = first + k * step;
      if (i < width) p.dx[row * width + i] = of(dy[k] * scale[k], x[k]);
    }
  }
  WEFT_UNROLL
  for (int k = 0; k < kHeld; ++k) {
    const int32_t i = first + k * step;
    if (i < width) {
      p.dscale_parts[static_cast<int64_t>(blockIdx.x) * width + i] = dscale[k];
      p.dbias_parts[static_cast<int64_t>(blockIdx.x) * width + i] = dbias[k];
    }
  }
}

}  // namespace

__global__ void __launch_bounds__(kLineThreads) layer_norm(LayerNorm p) {
  const Line line = line_of(p.lines);
  const float size = static_cast<float>(p.lines.size);
  const float mean =
      fold_elements<float>(p.lines, line, 0.0f, SumOf(), [&](int64_t i) { return p.x[line.base + i]; }) /
      size;
  const float squares = fold_elements<float>(p.lines, line, 0.0f, SumOf(), [&](int64_t i) {
    const float off = p.x[line.base + i] - mean;
    return off * off;
  });
  const float rstd = rstd_of(squares / size, p.epsilon);
  thread_map(
      line.first, line.count, p.lines.lanes,
      [&](int64_t i) { return normalised(p, p.x[line.base + i], mean, rstd, i); },
      [&](int64_t i, float y) { p.y[line.base + i] = y; });
  store_statistics(p, line, mean, rstd);
}
WEFT_KERNEL_ENTRY(layer_norm, LayerNorm)
__global__ void __launch_bounds__(kLineThreads) layer_norm_warp_8(LayerNorm p) { layer_norm_held<32, 8>(p); }
WEFT_KERNEL_ENTRY(layer_norm_warp_8, LayerNorm)
__global__ void __launch_bounds__(kLineThreads, 2) layer_norm_warp_32(LayerNorm p) {
  layer_norm_held<32, 32>(p);
}
WEFT_KERNEL_ENTRY(layer_norm_warp_32, LayerNorm)
__global__ void __launch_bounds__(kLineThreads) layer_norm_block_8(LayerNorm p) {
  layer_norm_held<kLineThreads, 8>(p);
}
WEFT_KERNEL_ENTRY(layer_norm_block_8, LayerNorm)
__global__ void __launch_bounds__(kLineThreads) layer_norm_block_16(LayerNorm p) {
  layer_norm_held<kLineThreads, 16>(p);
}
WEFT_KERNEL_ENTRY(layer_norm_block_16, LayerNorm)

// The sums over lines stay in memory, each with the thread that adds to it.
__global__ void __launch_bounds__(kLineThreads) layer_norm_grad(LayerNormGrad p) {
  const int64_t parts = static_cast<int64_t>(blockIdx.x) * p.width;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * p.rows_by_block;
  const int64_t end = smaller(p.rows, begin + p.rows_by_block);
  const float size = static_cast<float>(p.width);
  for (int64_t row = begin; row < end; ++row) {
    LineSlope of{p.mean[row], p.rstd[row], 0.0f, 0.0f};
    float sum = 0.0f, product = 0.0f;
    for (int64_t i = threadIdx.x; i < p.width; i += blockDim.x) {
      const float dy = p.dy[row * p.width + i], normal = of.normal(p.x[row * p.width + i]);
      const float g = p.scale.present() ? dy * p.scale[i] : dy;
      sum += g;
      product += g * normal;
      p.dscale_parts[parts + i] = (row == begin ? 0.0f : p.dscale_parts[parts + i]) + dy * normal;
      p.dbias_parts[parts + i] = (row == begin ? 0.0f : p.dbias_parts[parts + i]) + dy;
    }
    of.mean_g = block_sum(sum) / size;
    of.mean_gn = block_sum(product) / size;
    thread_map(
        threadIdx.x, p.width, blockDim.x,
        [&](int64_t i) {
          const float dy = p.dy[row * p.width + i];
          return of(p.scale.present() ? dy * p.scale[i] : dy, p.x[row * p.width + i]);
        },
        [&](int64_t i, float dx) { p.dx[row * p.width + i] = dx; });
  }
}
WEFT_KERNEL_ENTRY(layer_norm_grad, LayerNormGrad)
__global__ void __launch_bounds__(kLineThreads) layer_norm_grad_4(LayerNormGrad p) {
  layer_norm_grad_held<4>(p);
}
WEFT_KERNEL_ENTRY(layer_norm_grad_4, LayerNormGrad)
__global__ void __launch_bounds__(kLineThreads) layer_norm_grad_16(LayerNormGrad p) {
  layer_norm_grad_held<16>(p);
}
WEFT_KERNEL_ENTRY(layer_norm_grad_16, LayerNormGrad)

}  // namespace weft::peer::cuda
