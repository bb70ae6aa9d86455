// The optimizers' rules (dag/optimizer.h), one pass over memory each; and the table of this instruction set.
#include "peer/backend/cpu/loops/math.h"

namespace weft::peer::cpu::WEFT_ISA {
namespace {

void sgd(float* parameter, const float* gradient, float* momentum, int64_t count, const SgdArgs& args) {
  const float rate = args.learning_rate, decay = args.weight_decay, scale = args.gradient_scale;
  if (momentum == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) parameter[i] -= rate * (gradient[i] * scale + decay * parameter[i]);
    return;
  }
  // At the first step the buffer is the gradient itself, without dampening.
  const float kept = args.first != 0 ? 0.0f : args.momentum;
  const float added = args.first != 0 ? 1.0f : args.keep;
  const float ahead = args.nesterov != 0 ? args.momentum : 1.0f;
  const float own = args.nesterov != 0 ? 1.0f : 0.0f;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] * scale + decay * parameter[i];
    const float b = kept * momentum[i] + added * g;
    momentum[i] = b;
    parameter[i] -= rate * (own * g + ahead * b);
  }
}

void adam(float* parameter, const float* gradient, float* m, float* v, int64_t count, const AdamArgs& a) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float p = parameter[i] * a.decay_factor;
    const float g = gradient[i] * a.gradient_scale + a.weight_decay * p;
    const float first = a.beta1 * m[i] + a.one_minus_beta1 * g;
    const float second = a.beta2 * v[i] + a.one_minus_beta2 * (g * g);
    m[i] = first;
    v[i] = second;
    parameter[i] =
        p - a.step_size * (first / (__builtin_sqrtf(second) * a.inverse_sqrt_correction2 + a.epsilon));
  }
}

// ---- slots in eight bits: a block is widened, takes the step, and is narrowed ----

// Signed numbers throughout: what vectors compare.
constexpr int32_t kInfinity = 0x7F800000, kLeastNormal = 0x800000;

struct Signed {
  static constexpr bool kHasSign = true;
  static constexpr int32_t kExponentMax = 15, kCodeMax = 127, kNotFinite = 0x80, kWidened = 0x7FC00000;
};
struct Unsigned {
  static constexpr bool kHasSign = false;
  static constexpr int32_t kExponentMax = 31, kCodeMax = 254, kNotFinite = 255, kWidened = kInfinity;
};

template <typename Format>
WEFT_LOOP_INLINE void widen(const uint8_t* codes, int32_t scale, int64_t count, float* out) {
  constexpr int32_t kLeast = Format::kExponentMax + 3;
  const int32_t base = (scale < kLeast ? kLeast : scale) - Format::kExponentMax;
  const float unit = bits_to_float((base - 2) << 23);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const int32_t code = codes[i];
    const int32_t magnitude = Format::kHasSign ? code & 127 : code;
    const int32_t small = float_to_bits(static_cast<float>(magnitude) * unit);
    int32_t bits = magnitude < 8 ? small : (magnitude << 20) + (base << 23);
    if (Format::kHasSign) bits |= code > 127 ? INT32_MIN : 0;
    out[i] = bits_to_float(code == Format::kNotFinite ? Format::kWidened : bits);
  }
}

template <typename Format>
WEFT_LOOP_INLINE int32_t scale_of(const float* values, int64_t count) {
  int32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) {
    const int32_t magnitude = float_to_bits(values[i]) & INT32_MAX;
    const int32_t finite = magnitude < kInfinity ? magnitude : 0;
    largest = largest < finite ? finite : largest;
  }
  constexpr int32_t kLeast = Format::kExponentMax + 3;
  const int32_t scale = static_cast<int32_t>((static_cast<uint32_t>(largest) + 0x1FFFFF) >> 23);
  return scale < kLeast ? kLeast : scale > 254 ? 254 : scale;
}

// From which a lane's chances are.
WEFT_LOOP_INLINE uint32_t mix_bits(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

// `base`: the scale less kExponentMax; `units`: 2^(129 - base).
template <typename Format>
WEFT_LOOP_INLINE int32_t narrow(float value, int32_t base, float units, int32_t chance) {
  const int32_t bits = float_to_bits(value), magnitude = bits & INT32_MAX;
  const int32_t normal = (magnitude - (base << 23) + chance) >> 20;
  const float in_units = bits_to_float(magnitude) * units;
  const float small = (in_units < 8.0f ? in_units : 8.0f) + static_cast<float>(chance) * 0x1p-20f;
  int32_t code = magnitude >= (base + 1) << 23 ? normal : static_cast<int32_t>(small);
  if (!Format::kHasSign) code = code < 1 ? 1 : code;
  code = code < Format::kCodeMax ? code : Format::kCodeMax;
  if (Format::kHasSign) code |= (bits < 0) & (code > 0) ? 128 : 0;
  code = magnitude < kLeastNormal ? 0 : code;
  return magnitude >= kInfinity ? Format::kNotFinite : code;
}
template <typename Format>
struct Narrowing {
  int32_t base;
  float units;
  WEFT_LOOP_INLINE explicit Narrowing(int32_t scale)
      : base(scale - Format::kExponentMax), units(bits_to_float((256 - base) << 23)) {}
};

void coded_sgd(float* parameter, const float* gradient, const CodedSlot& momentum, int64_t count,
               const SgdArgs& args) {
  alignas(64) float b[kSlotBlock];
  for (int64_t at = 0; at < count; at += kSlotBlock) {
    const int64_t size = count - at < kSlotBlock ? count - at : kSlotBlock;
    uint8_t *codes = momentum.codes + at, *scale = momentum.scales + at / kSlotBlock;
    widen<Signed>(codes, *scale, size, b);
    sgd(parameter + at, gradient + at, b, size, args);
    *scale = static_cast<uint8_t>(scale_of<Signed>(b, size));
    const Narrowing<Signed> to(*scale);
    const uint32_t place = static_cast<uint32_t>(momentum.first + at), draw = momentum.draw;
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) {
      const uint32_t chance = mix_bits((place + static_cast<uint32_t>(i)) ^ draw) >> 12;
      codes[i] = static_cast<uint8_t>(narrow<Signed>(b[i], to.base, to.units, static_cast<int32_t>(chance)));
    }
  }
}

void coded_adam(float* parameter, const float* gradient, const CodedSlot& m, const CodedSlot& v,
                int64_t count, const AdamArgs& args) {
  alignas(64) float first[kSlotBlock], second[kSlotBlock];
  for (int64_t at = 0; at < count; at += kSlotBlock) {
    const int64_t size = count - at < kSlotBlock ? count - at : kSlotBlock, block = at / kSlotBlock;
    uint8_t *m_codes = m.codes + at, *v_codes = v.codes + at;
    widen<Signed>(m_codes, m.scales[block], size, first);
    widen<Unsigned>(v_codes, v.scales[block], size, second);
    adam(parameter + at, gradient + at, first, second, size, args);
    m.scales[block] = static_cast<uint8_t>(scale_of<Signed>(first, size));
    v.scales[block] = static_cast<uint8_t>(scale_of<Unsigned>(second, size));
    const Narrowing<Signed> to_m(m.scales[block]);
    const Narrowing<Unsigned> to_v(v.scales[block]);
    const uint32_t place = static_cast<uint32_t>(m.first + at), draw = m.draw;
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) {
      const uint32_t mixed = mix_bits((place + static_cast<uint32_t>(i)) ^ draw);
      const auto upper = static_cast<int32_t>(mixed >> 12), lower = static_cast<int32_t>(mixed & 0xFFFFF);
      m_codes[i] = static_cast<uint8_t>(narrow<Signed>(first[i], to_m.base, to_m.units, upper));
      v_codes[i] = static_cast<uint8_t>(narrow<Unsigned>(second[i], to_v.base, to_v.units, lower));
    }
  }
}

}  // namespace

void add_update_loops(LoopTable& t) {
  t.sgd = sgd;
  t.adam = adam;
  t.coded_sgd = coded_sgd;
  t.coded_adam = coded_adam;
}

const LoopTable& table() {
  static LoopTable filled = {};
  static const bool kOnce = [] {
    filled.isa = WEFT_LOOP_STRING(WEFT_ISA);
    add_unary_loops(filled);
    add_binary_loops(filled);
    add_row_loops(filled);
    add_plane_loops(filled);
    add_pool_loops(filled);
    add_update_loops(filled);
    add_gemm_loops(filled);
    add_few_rows_loops(filled);
    add_convolution_loops(filled);
    add_recurrent_loops(filled);
    add_byte_loops(filled);
    add_stored_loops(filled);
    return true;
  }();
  (void)kOnce;
  return filled;
}

}  // namespace weft::peer::cpu::WEFT_ISA
