#include "peer/backend/cuda/kernels/block.cuh"
#include "peer/backend/cuda/kernels/update.h"

namespace weft::peer::cuda {
namespace {

// Which tensor a chunk is of. The same for the whole block.
__device__ __forceinline__ int32_t tensor_of(const int64_t* starts, int32_t tensors, int64_t chunk) {
  int32_t low = 0, high = tensors - 1;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (starts[middle] <= chunk)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

struct SgdRule {
  SgdArgs args;
  bool has_momentum;

  __device__ __forceinline__ void operator()(float& p, float g, float& b, float&) const {
    g = g * args.gradient_scale + args.weight_decay * p;
    if (has_momentum) {
      // At the first step the buffer is the gradient itself, without dampening.
      b = args.first != 0 ? g : args.momentum * b + args.keep * g;
      g = args.nesterov != 0 ? g + args.momentum * b : b;
    }
    p -= args.learning_rate * g;
  }
};

struct AdamRule {
  AdamArgs args;

  __device__ __forceinline__ void operator()(float& p, float g, float& m, float& v) const {
    p *= args.decay_factor;
    g = g * args.gradient_scale + args.weight_decay * p;
    m = args.beta1 * m + args.one_minus_beta1 * g;
    v = args.beta2 * v + args.one_minus_beta2 * (g * g);
    p -= args.step_size * (m / (sqrtf(v) * args.inverse_sqrt_correction2 + args.epsilon));
  }
};

__device__ __forceinline__ Float4 load4_of(const Array<float>& from, int64_t i) {
  return load4(Array<const float>{from.data, from.count}, i);
}

template <typename Rule>
__device__ __forceinline__ void update_four(const UpdatedTensor& t, int64_t i, const Rule& rule) {
  const bool has_first = t.first.present(), has_second = t.second.present();
  Float4 p = load4_of(t.parameter, i), first{}, second{};
  const Float4 g = load4(t.gradient, i);
  if (has_first) first = load4_of(t.first, i);
  if (has_second) second = load4_of(t.second, i);
  rule(p.x, g.x, first.x, second.x);
  rule(p.y, g.y, first.y, second.y);
  rule(p.z, g.z, first.z, second.z);
  rule(p.w, g.w, first.w, second.w);
  store4(t.parameter, i, p);
  if (has_first) store4(t.first, i, first);
  if (has_second) store4(t.second, i, second);
}

template <typename Rule>
__device__ __forceinline__ void update_one(const UpdatedTensor& t, int64_t i, const Rule& rule) {
  const bool has_first = t.first.present(), has_second = t.second.present();
  float p = t.parameter[i], first = has_first ? t.first[i] : 0.0f, second = has_second ? t.second[i] : 0.0f;
  rule(p, t.gradient[i], first, second);
  t.parameter[i] = p;
  if (has_first) t.first[i] = first;
  if (has_second) t.second[i] = second;
}

// The elements of a chunk, four at a time while there are four.
template <typename Four, typename One>
__device__ __forceinline__ void over_chunk(int64_t begin, int64_t count, const Four& four, const One& one) {
  const int64_t end = count - begin < kUpdateChunk ? count : begin + kUpdateChunk;
  const int64_t whole = begin + (end - begin) / 4 * 4;
  for (int64_t i = begin + 4 * static_cast<int64_t>(threadIdx.x); i < whole; i += 4 * kUpdateThreads) four(i);
  for (int64_t i = whole + threadIdx.x; i < end; i += kUpdateThreads) one(i);
}

template <typename Rule>
__device__ __forceinline__ void update(const UpdateTable& table, const UpdatedTensor& t, int32_t which,
                                       const Rule& rule) {
  over_chunk((blockIdx.x - table.starts[which]) * kUpdateChunk, t.gradient.count,
             [&](int64_t i) { update_four(t, i, rule); }, [&](int64_t i) { update_one(t, i, rule); });
}

}  // namespace

__global__ void __launch_bounds__(kUpdateThreads) sgd(Sgd p) {
  const int32_t which = tensor_of(p.table.starts, p.table.count, blockIdx.x);
  const UpdatedTensor t = p.table.tensors[which];
  update(p.table, t, which, SgdRule{p.args, t.first.present()});
}
WEFT_KERNEL_ENTRY(sgd, Sgd)

__global__ void __launch_bounds__(kUpdateThreads) adam(Adam p) {
  const int32_t which = tensor_of(p.table.starts, p.table.count, blockIdx.x);
  const UpdatedTensor t = p.table.tensors[which];
  update(p.table, t, which, AdamRule{p.args});
}
WEFT_KERNEL_ENTRY(adam, Adam)

__global__ void __launch_bounds__(kUpdateThreads) accumulate(Accumulate p) {
  over_chunk(
      blockIdx.x * kUpdateChunk, p.from.count,
      [&](int64_t i) {
        const Float4 a = load4_of(p.into, i), b = load4(p.from, i);
        store4(p.into, i, {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w});
      },
      [&](int64_t i) { p.into[i] = p.into[i] + p.from[i]; });
}
WEFT_KERNEL_ENTRY(accumulate, Accumulate)

__global__ void __launch_bounds__(kUpdateThreads) squares(Squares p) {
  const int64_t chunk = p.starts[0] + blockIdx.x;
  const int32_t which = tensor_of(p.starts, p.tensors, chunk);
  const Array<const float> x = p.sources[which];
  double sum = 0;
  const auto add = [&](float value) { sum += static_cast<double>(value) * static_cast<double>(value); };
  over_chunk((chunk - p.starts[which]) * kUpdateChunk, x.count,
             [&](int64_t i) {
               const Float4 four = load4(x, i);
               add(four.x), add(four.y), add(four.z), add(four.w);
             },
             [&](int64_t i) { add(x[i]); });
  sum = block_sum(sum);
  if (threadIdx.x == 0) p.partials[chunk] = sum;
}
WEFT_KERNEL_ENTRY(squares, Squares)

__global__ void __launch_bounds__(kUpdateThreads) squares_totals(SquaresTotals p) {
  double sum = 0;
  for (int64_t i = p.starts[blockIdx.x] + threadIdx.x; i < p.starts[blockIdx.x + 1]; i += kUpdateThreads)
    sum += p.partials[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) p.sums[p.first + blockIdx.x] = sum;
}
WEFT_KERNEL_ENTRY(squares_totals, SquaresTotals)

}  // namespace weft::peer::cuda
