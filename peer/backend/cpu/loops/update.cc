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

}  // namespace

void add_update_loops(LoopTable& t) {
  t.sgd = sgd;
  t.adam = adam;
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
