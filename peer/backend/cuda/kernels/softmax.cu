#include "peer/backend/cuda/kernels/block.cuh"
#include "peer/backend/cuda/kernels/softmax.h"

namespace weft::peer::cuda {
namespace {

// The largest so far, and the sum of e^(x - largest), which a NaN makes NaN. Reads each element once.
struct Peak {
  float top = -math::infinity();
  float sum = 0.0f;

  // e^(x - shift): of -inf alone nothing is subtracted, so that it counts as nothing and not as NaN.
  __device__ __forceinline__ static float shift_of(float top) {
    return top == -math::infinity() ? 0.0f : top;
  }
  __device__ __forceinline__ void raise(float x) {
    if (!(x > top)) return;
    sum *= math::exp(top - shift_of(x));
    top = x;
  }
  __device__ __forceinline__ void add(float x) {
    raise(x);
    sum += math::exp(x - shift_of(top));
  }
  // Four, with at most one exponential more.
  __device__ __forceinline__ void add(float a, float b, float c, float d) {
    raise(fmaxf(fmaxf(a, b), fmaxf(c, d)));
    const float shift = shift_of(top);
    sum += (math::exp(a - shift) + math::exp(b - shift)) + (math::exp(c - shift) + math::exp(d - shift));
  }
};

__device__ __forceinline__ Peak peak_of(const Lines& lines, const Line& line, const Array<const float>& x) {
  Peak own;
  const int64_t inner = lines.inner, step = lines.lanes;
  int64_t k = line.first;
  for (; k + 3 * step < line.count; k += 4 * step) {
    const int64_t at = line.base + k * inner, apart = step * inner;
    own.add(x[at], x[at + apart], x[at + 2 * apart], x[at + 3 * apart]);
  }
  for (; k < line.count; k += step) own.add(x[line.base + k * inner]);
  Peak all;
  all.top = line_fold(lines, own.top, -math::infinity(), LargerOf());
  all.sum = line_sum(lines, own.sum * math::exp(own.top - Peak::shift_of(all.top)));
  return all;
}

template <int32_t kLanes, int kHeld>
__device__ __forceinline__ void softmax_held(const Softmax& p) {
  const Line line = line_of(p.lines);
  const int32_t count = static_cast<int32_t>(line.count);
  const bool logarithm = p.logarithm != 0;
  float x[kHeld];
  float top = -math::infinity(), sum = 0.0f;
  WEFT_UNROLL
  for (int k = 0; k < kHeld; ++k) {
    const int32_t i = line.first + k * kLanes;
    x[k] = i < count ? p.x[line.base + i] : -math::infinity();
    top = fmaxf(top, x[k]);
  }
  top = lanes_fold<kLanes>(top, -math::infinity(), LargerOf());
  const float shift = Peak::shift_of(top);  // what is beyond the end counts as nothing
  WEFT_UNROLL
  for (int k = 0; k < kHeld; ++k) {
    const float power = math::exp(x[k] - shift);
    sum += power;
    x[k] = logarithm ? x[k] - top : power;
  }
  sum = lanes_fold<kLanes>(sum, 0.0f, SumOf());
  const float rest = logarithm ? math::log(sum) : 0.0f, scale = 1.0f / sum;
  WEFT_UNROLL
  for (int k = 0; k < kHeld; ++k) {
    const int32_t i = line.first + k * kLanes;
    if (i < count) p.y[line.base + i] = logarithm ? x[k] - rest : x[k] * scale;
  }
}

__device__ __forceinline__ float softmax_slope(float dy, float y, float sum, bool logarithm) {
  return logarithm ? dy - math::exp(y) * sum : (dy - sum) * y;
}

template <int32_t kLanes, int kHeld>
__device__ __forceinline__ void softmax_grad_held(const SoftmaxGrad& p) {
  const Line line = line_of(p.lines);
  const int32_t count = static_cast<int32_t>(line.count);
  const bool logarithm = p.logarithm != 0;
  float dy[kHeld], y[kHeld];
  float sum = 0.0f;
  WEFT_UNROLL
  for (int k = 0; k < kHeld; ++k) {
    const int32_t i = line.first + k * kLanes;
    dy[k] = i < count ? p.dy[line.base + i] : 0.0f;
    y[k] = i < count ? p.y[line.base + i] : 0.0f;
  }
  WEFT_UNROLL
  for (int k = 0; k < kHeld; ++k) sum += logarithm ? dy[k] : dy[k] * y[k];
  sum = lanes_fold<kLanes>(sum, 0.0f, SumOf());
  WEFT_UNROLL
  for (int k = 0; k < kHeld; ++k) {
    const int32_t i = line.first + k * kLanes;
    if (i < count) p.dx[line.base + i] = softmax_slope(dy[k], y[k], sum, logarithm);
  }
}

// ---- labels ----

__device__ __forceinline__ int64_t label_of(const Labels& labels, int64_t line) {
  return labels.wide.present() ? labels.wide[line] : static_cast<int64_t>(labels.narrow[line]);
}
__device__ __forceinline__ bool is_ignored(const Labels& labels, int64_t label) {
  return labels.has_ignored != 0 && label == labels.ignored;
}
__device__ __forceinline__ bool is_class(const Labels& labels, int64_t label) {
  return label >= 0 && label < labels.classes;
}
// Zero for an ignored label, NaN for one that is no class.
__device__ __forceinline__ float weight_of(const Labels& labels, int64_t label) {
  if (is_ignored(labels, label)) return 0.0f;
  if (!is_class(labels, label)) return math::not_a_number();
  return labels.weight.present() ? labels.weight[label] : 1.0f;
}

}  // namespace

__global__ void __launch_bounds__(kLineThreads) softmax(Softmax p) {
  const Line line = line_of(p.lines);
  const Peak peak = peak_of(p.lines, line, p.x);
  const bool logarithm = p.logarithm != 0;
  const float rest = logarithm ? math::log(peak.sum) : 0.0f, scale = 1.0f / peak.sum;
  const int64_t inner = p.lines.inner;
  thread_map(
      line.first, line.count, p.lines.lanes,
      [&](int64_t k) {
        const float x = p.x[line.base + k * inner] - peak.top;  // NaN where all are -inf
        return logarithm ? x - rest : math::exp(x) * scale;
      },
      [&](int64_t k, float y) { p.y[line.base + k * inner] = y; });
}
WEFT_KERNEL_ENTRY(softmax, Softmax)
__global__ void __launch_bounds__(kLineThreads) softmax_warp_8(Softmax p) { softmax_held<32, 8>(p); }
WEFT_KERNEL_ENTRY(softmax_warp_8, Softmax)
__global__ void __launch_bounds__(kLineThreads, 2) softmax_warp_32(Softmax p) { softmax_held<32, 32>(p); }
WEFT_KERNEL_ENTRY(softmax_warp_32, Softmax)
__global__ void __launch_bounds__(kLineThreads) softmax_block_8(Softmax p) {
  softmax_held<kLineThreads, 8>(p);
}
WEFT_KERNEL_ENTRY(softmax_block_8, Softmax)
__global__ void __launch_bounds__(kLineThreads) softmax_block_16(Softmax p) {
  softmax_held<kLineThreads, 16>(p);
}
WEFT_KERNEL_ENTRY(softmax_block_16, Softmax)

__global__ void __launch_bounds__(kLineThreads) softmax_grad(SoftmaxGrad p) {
  const Line line = line_of(p.lines);
  const bool logarithm = p.logarithm != 0;
  const float sum = fold_elements<float>(p.lines, line, 0.0f, SumOf(), [&](int64_t k) {
    const int64_t at = line.base + k * p.lines.inner;
    return logarithm ? p.dy[at] : p.dy[at] * p.y[at];
  });
  const int64_t inner = p.lines.inner;
  thread_map(
      line.first, line.count, p.lines.lanes,
      [&](int64_t k) {
        const int64_t at = line.base + k * inner;
        return softmax_slope(p.dy[at], p.y[at], sum, logarithm);
      },
      [&](int64_t k, float dx) { p.dx[line.base + k * inner] = dx; });
}
WEFT_KERNEL_ENTRY(softmax_grad, SoftmaxGrad)
__global__ void __launch_bounds__(kLineThreads) softmax_grad_warp_8(SoftmaxGrad p) {
  softmax_grad_held<32, 8>(p);
}
WEFT_KERNEL_ENTRY(softmax_grad_warp_8, SoftmaxGrad)
__global__ void __launch_bounds__(kLineThreads, 2) softmax_grad_warp_32(SoftmaxGrad p) {
  softmax_grad_held<32, 32>(p);
}
WEFT_KERNEL_ENTRY(softmax_grad_warp_32, SoftmaxGrad)
__global__ void __launch_bounds__(kLineThreads) softmax_grad_block_8(SoftmaxGrad p) {
  softmax_grad_held<kLineThreads, 8>(p);
}
WEFT_KERNEL_ENTRY(softmax_grad_block_8, SoftmaxGrad)
__global__ void __launch_bounds__(kLineThreads) softmax_grad_block_16(SoftmaxGrad p) {
  softmax_grad_held<kLineThreads, 16>(p);
}
WEFT_KERNEL_ENTRY(softmax_grad_block_16, SoftmaxGrad)

__global__ void __launch_bounds__(kLineThreads) line_losses(LineLosses p) {
  const Line line = line_of(p.lines);
  const Peak peak = peak_of(p.lines, line, p.logits);
  if (!line.there || line.first != 0) return;
  // Where the largest is infinite there is no such sum.
  const bool finite = fabsf(peak.top) < math::infinity();
  const float rest = finite ? math::log(peak.sum) : math::not_a_number();
  p.lse[line.index] = peak.top + rest;
  const int64_t label = label_of(p.labels, line.index);
  float loss = weight_of(p.labels, label);
  if (!is_ignored(p.labels, label) && is_class(p.labels, label))
    loss *= (peak.top - p.logits[line.base + label * p.lines.inner]) + rest;
  p.losses[line.index] = loss;
}
WEFT_KERNEL_ENTRY(line_losses, LineLosses)

__global__ void __launch_bounds__(kLineThreads) partial_totals(PartialTotals p) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTotalledLabels;
  const int64_t end = p.count - begin < kTotalledLabels ? p.count : begin + kTotalledLabels;
  double loss = 0, weight = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kLineThreads) {
    if (p.losses.present()) loss += static_cast<double>(p.losses[i]);
    weight += static_cast<double>(weight_of(p.labels, label_of(p.labels, i)));
  }
  loss = block_sum(loss);
  weight = block_sum(weight);
  if (threadIdx.x != 0) return;
  p.partials[2 * static_cast<int64_t>(blockIdx.x)] = loss;
  p.partials[2 * static_cast<int64_t>(blockIdx.x) + 1] = weight;
}
WEFT_KERNEL_ENTRY(partial_totals, PartialTotals)

__global__ void __launch_bounds__(kLineThreads) totals(Totals p) {
  double loss = 0, weight = 0;
  for (int64_t i = threadIdx.x; i < p.partials.count / 2; i += kLineThreads) {
    loss += p.partials[2 * i];
    weight += p.partials[2 * i + 1];
  }
  loss = block_sum(loss);
  weight = block_sum(weight);
  if (threadIdx.x != 0) return;
  if (p.loss.present()) p.loss[0] = static_cast<float>(p.mean != 0 ? loss / weight : loss);
  if (p.total_weight.present()) p.total_weight[0] = weight;
}
WEFT_KERNEL_ENTRY(totals, Totals)

__global__ void __launch_bounds__(kLineThreads) loss_factors(LossFactors p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kLineThreads + threadIdx.x;
  if (i >= p.factors.count) return;
  float factor = p.dloss[p.dloss.count == 1 ? 0 : i] * weight_of(p.labels, label_of(p.labels, i));
  if (p.total_weight.present()) factor /= static_cast<float>(p.total_weight[0]);
  p.factors[i] = factor;
}
WEFT_KERNEL_ENTRY(loss_factors, LossFactors)

__global__ void __launch_bounds__(kLineThreads) cross_entropy_grad(CrossEntropyGrad p) {
  const Line line = line_of(p.lines);
  if (!line.there) return;
  const int64_t label = label_of(p.labels, line.index);
  const bool ignored = is_ignored(p.labels, label);
  const float factor = p.factors[line.index], lse = p.lse[line.index];
  const int64_t inner = p.lines.inner;
  thread_map(
      line.first, line.count, p.lines.lanes,
      [&](int64_t k) {
        const float power = math::exp(p.logits[line.base + k * inner] - lse);
        return ignored ? 0.0f : factor * power - (k == label ? factor : 0.0f);
      },
      [&](int64_t k, float dx) { p.dx[line.base + k * inner] = dx; });
}
WEFT_KERNEL_ENTRY(cross_entropy_grad, CrossEntropyGrad)

}  // namespace weft::peer::cuda
