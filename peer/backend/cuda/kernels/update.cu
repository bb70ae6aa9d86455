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
__device__ __forceinline__ void update(const UpdateTable<UpdatedTensor>& table, const UpdatedTensor& t,
                                       int32_t which, const Rule& rule) {
  over_chunk((blockIdx.x - table.starts[which]) * kUpdateChunk, t.gradient.count,
             [&](int64_t i) { update_four(t, i, rule); }, [&](int64_t i) { update_one(t, i, rule); });
}

// ---- slots in eight bits: a warp widens a block, takes the step, and narrows it ----

inline constexpr int32_t kOfLane = kSlotBlock / 32;  // elements of a block, 32 apart

struct SignedCode {
  static constexpr bool kHasSign = true;
  static constexpr uint32_t kExponentMax = 15, kCodeMax = 127, kNotFinite = 0x80, kWidened = 0x7FC00000u;
};
struct UnsignedCode {
  static constexpr bool kHasSign = false;
  static constexpr uint32_t kExponentMax = 31, kCodeMax = 254, kNotFinite = 255, kWidened = 0x7F800000u;
};
struct LargestOf {
  __device__ __forceinline__ uint32_t operator()(uint32_t a, uint32_t b) const { return a > b ? a : b; }
};

__device__ __forceinline__ uint32_t mix_bits(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

template <typename Code>
__device__ __forceinline__ float widen(uint32_t code, uint32_t scale) {
  constexpr uint32_t kLeast = Code::kExponentMax + 3;
  const uint32_t base = (scale < kLeast ? kLeast : scale) - Code::kExponentMax;
  const uint32_t magnitude = Code::kHasSign ? code & 127u : code;
  const float unit = __uint_as_float((base - 2) << 23);
  uint32_t bits = magnitude < 8 ? __float_as_uint(static_cast<float>(magnitude) * unit)
                                : (magnitude << 20) + (base << 23);
  if (Code::kHasSign) bits |= code >> 7 << 31;
  return __uint_as_float(code == Code::kNotFinite ? Code::kWidened : bits);
}

template <typename Code>
__device__ __forceinline__ uint32_t narrow(float value, uint32_t scale, uint32_t chance) {
  const uint32_t bits = __float_as_uint(value), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t base = scale - Code::kExponentMax;
  if (magnitude >= 0x7F800000u) return Code::kNotFinite;
  if (magnitude < 0x800000u) return 0;
  uint32_t code = 0;
  if (magnitude >> 23 > base)
    code = (magnitude - (base << 23) + chance) >> 20;
  else
    code = static_cast<uint32_t>(fabsf(value) * __uint_as_float((256 - base) << 23) +
                                 static_cast<float>(chance) * 0x1p-20f);
  if (!Code::kHasSign && code == 0) code = 1;
  if (code > Code::kCodeMax) code = Code::kCodeMax;
  if (Code::kHasSign && code > 0) code |= bits >> 31 << 7;
  return code;
}

// A lane's elements of the block that begins at `begin`, of a slot of `count` elements.
template <typename Code>
struct LaneSlot {
  Array<uint8_t> bytes;
  float values[kOfLane];

  __device__ __forceinline__ void load(int64_t begin, int64_t count, int32_t lane) {
    const uint32_t scale = bytes[count + begin / kSlotBlock];
    WEFT_UNROLL
    for (int32_t j = 0; j < kOfLane; ++j) {
      const int64_t i = begin + lane + 32 * j;
      values[j] = i < count ? widen<Code>(bytes[i], scale) : 0.0f;
    }
  }
  // All lanes of the warp call. `shift`: of the chance within the hash.
  __device__ __forceinline__ void store(int64_t begin, int64_t count, int32_t lane, uint32_t draw,
                                        uint32_t shift) const {
    uint32_t largest = 0;
    WEFT_UNROLL
    for (int32_t j = 0; j < kOfLane; ++j) {
      const uint32_t magnitude = __float_as_uint(values[j]) & 0x7FFFFFFFu;
      if (begin + lane + 32 * j < count && magnitude < 0x7F800000u && magnitude > largest)
        largest = magnitude;
    }
    largest = warp_fold(largest, LargestOf());
    constexpr uint32_t kLeast = Code::kExponentMax + 3;
    uint32_t scale = (largest + 0x1FFFFFu) >> 23;
    scale = scale < kLeast ? kLeast : scale > 254 ? 254 : scale;
    WEFT_UNROLL
    for (int32_t j = 0; j < kOfLane; ++j) {
      const int64_t i = begin + lane + 32 * j;
      const uint32_t chance = (mix_bits(static_cast<uint32_t>(i) ^ draw) >> shift) & 0xFFFFFu;
      if (i < count) bytes[i] = static_cast<uint8_t>(narrow<Code>(values[j], scale, chance));
    }
    if (lane == 0) bytes[count + begin / kSlotBlock] = static_cast<uint8_t>(scale);
  }
};

template <bool kHasSecond, typename Rule>
__device__ __forceinline__ void update_coded(const CodedTensor& t, int64_t chunk, uint32_t draw,
                                             const Rule& rule) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  const int64_t count = t.gradient.count, end = (chunk + 1) * kUpdateChunk;
  for (int64_t begin = chunk * kUpdateChunk + kSlotBlock * static_cast<int64_t>(threadIdx.x / 32);
       begin < end && begin < count; begin += kSlotBlock * (kUpdateThreads / 32)) {
    LaneSlot<SignedCode> first{t.first, {}};
    LaneSlot<UnsignedCode> second{t.second, {}};
    first.load(begin, count, lane);
    if (kHasSecond) second.load(begin, count, lane);
    for (int32_t j = 0; j < kOfLane; ++j) {
      const int64_t i = begin + lane + 32 * j;
      if (i >= count) continue;
      float p = t.parameter[i];
      rule(p, t.gradient[i], first.values[j], second.values[j]);
      t.parameter[i] = p;
    }
    __syncwarp();  // the scale was read by all
    first.store(begin, count, lane, draw, 12);
    if (kHasSecond) second.store(begin, count, lane, draw, 0);
  }
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

__global__ void __launch_bounds__(kUpdateThreads) coded_sgd(CodedSgd p) {
  const int32_t which = tensor_of(p.table.starts, p.table.count, blockIdx.x);
  update_coded<false>(p.table.tensors[which], blockIdx.x - p.table.starts[which], p.draw,
                      SgdRule{p.args, true});
}
WEFT_KERNEL_ENTRY(coded_sgd, CodedSgd)

__global__ void __launch_bounds__(kUpdateThreads) coded_adam(CodedAdam p) {
  const int32_t which = tensor_of(p.table.starts, p.table.count, blockIdx.x);
  update_coded<true>(p.table.tensors[which], blockIdx.x - p.table.starts[which], p.draw, AdamRule{p.args});
}
WEFT_KERNEL_ENTRY(coded_adam, CodedAdam)

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
