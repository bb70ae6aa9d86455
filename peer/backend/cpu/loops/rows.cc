// Loops over one row: reductions, softmax, layer normalisation. A sum runs in 32 partial sums (element i goes
// to i % 32) that are folded in a fixed order, so that its bits depend on the row alone.
#include "peer/backend/cpu/loops/math.h"

namespace weft::peer::cpu::WEFT_ISA {
namespace {

constexpr int64_t kWide = 32;

// Folds f(i) over [0, count) into 32 partial results and those into one, by halves.
template <typename Combine, typename Function>
WEFT_LOOP_INLINE float fold(int64_t count, float identity, Combine combine, Function f) {
  float partial[kWide];
  for (int64_t j = 0; j < kWide; ++j) partial[j] = identity;
  int64_t i = 0;
  for (; i + kWide <= count; i += kWide) {
#pragma GCC unroll 32
    for (int64_t j = 0; j < kWide; ++j) partial[j] = combine(partial[j], f(i + j));
  }
  for (int64_t j = 0; i < count; ++i, ++j) partial[j] = combine(partial[j], f(i));
  for (int64_t width = kWide / 2; width > 0; width /= 2) {
    for (int64_t j = 0; j < width; ++j) partial[j] = combine(partial[j], partial[j + width]);
  }
  return partial[0];
}

struct SumOf {
  WEFT_LOOP_INLINE float operator()(float a, float b) const { return a + b; }
};
struct ProductOf {
  WEFT_LOOP_INLINE float operator()(float a, float b) const { return a * b; }
};
// For softmax: a NaN is passed over here and comes back by the exponential.
struct LargerOf {
  WEFT_LOOP_INLINE float operator()(float a, float b) const { return b > a ? b : a; }
};
struct MaxOf {
  WEFT_LOOP_INLINE float operator()(float a, float b) const { return (a > b || a != a) ? a : b; }
};
struct MinOf {
  WEFT_LOOP_INLINE float operator()(float a, float b) const { return (a < b || a != a) ? a : b; }
};

// Long rows add up in pieces, so that the error grows with a piece's length and not with the row's.
constexpr int64_t kPiece = 8192;
template <typename Function>
WEFT_LOOP_INLINE double sum_pieces(int64_t count, Function f) {
  double total = 0;
  for (int64_t start = 0; start < count; start += kPiece) {
    const int64_t length = count - start < kPiece ? count - start : kPiece;
    total += static_cast<double>(
        fold(length, 0.0f, SumOf(), [&](int64_t i) WEFT_LOOP_LAMBDA { return f(start + i); }));
  }
  return total;
}

float sum_row(const float* x, int64_t count) {
  return static_cast<float>(sum_pieces(count, [x](int64_t i) WEFT_LOOP_LAMBDA { return x[i]; }));
}
float max_row(const float* x, int64_t count) {
  return fold(count, -__builtin_inff(), MaxOf(), [x](int64_t i) WEFT_LOOP_LAMBDA { return x[i]; });
}
float min_row(const float* x, int64_t count) {
  return fold(count, __builtin_inff(), MinOf(), [x](int64_t i) WEFT_LOOP_LAMBDA { return x[i]; });
}
float product_row(const float* x, int64_t count) {
  return fold(count, 1.0f, ProductOf(), [x](int64_t i) WEFT_LOOP_LAMBDA { return x[i]; });
}

template <typename Combine>
void combine_into(float* into, const float* x, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) into[i] = Combine()(into[i], x[i]);
}

void scale(float* x, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}
void fill(float* x, float value, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] = value;
}

WEFT_LOOP_INLINE float larger(const float* x, int64_t count) {
  return fold(count, -__builtin_inff(), LargerOf(), [x](int64_t i) WEFT_LOOP_LAMBDA { return x[i]; });
}

void softmax_row(const float* x, float* y, int64_t count) {
  const float top = larger(x, count);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = exp_(x[i] - top);
  const float factor = 1.0f / sum_row(y, count);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] *= factor;
}

void softmax_grad_row(const float* dy, const float* y, float* dx, int64_t count) {
  const float dot =
      static_cast<float>(sum_pieces(count, [=](int64_t i) WEFT_LOOP_LAMBDA { return dy[i] * y[i]; }));
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) dx[i] = (dy[i] - dot) * y[i];
}

float log_sum_exp_row(const float* x, int64_t count) {
  // The exponentials of a piece are kept beside the loop: calling exp within the fold would not vectorise as
  // well.
  constexpr int64_t kBuffer = 1024;
  float buffer[kBuffer];
  const float top = larger(x, count);
  double total = 0;
  for (int64_t start = 0; start < count; start += kBuffer) {
    const int64_t length = count - start < kBuffer ? count - start : kBuffer;
#pragma omp simd
    for (int64_t i = 0; i < length; ++i) buffer[i] = exp_(x[start + i] - top);
    total += static_cast<double>(sum_row(buffer, length));
  }
  return top + log_(static_cast<float>(total));
}

void log_softmax_row(const float* x, float* y, int64_t count) {
  const float top = larger(x, count);
  const float rest = log_sum_exp_row(x, count) - top;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = (x[i] - top) - rest;
}

void log_softmax_grad_row(const float* dy, const float* y, float* dx, int64_t count) {
  const float sum = sum_row(dy, count);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) dx[i] = dy[i] - exp_(y[i]) * sum;
}

void scaled_exp_row(const float* x, float lse, float factor, float* dx, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) dx[i] = factor * exp_(x[i] - lse);
}

void layer_norm_row(const float* x, const float* gain, const float* bias, float* y, int64_t count,
                    float epsilon, float* moments) {
  const double size = static_cast<double>(count);
  const double mean = sum_pieces(count, [x](int64_t i) WEFT_LOOP_LAMBDA { return x[i]; }) / size;
  const float m = static_cast<float>(mean);
  const double variance =
      sum_pieces(count, [=](int64_t i) WEFT_LOOP_LAMBDA { return (x[i] - m) * (x[i] - m); }) / size;
  const float r = static_cast<float>(1.0 / __builtin_sqrt(variance + static_cast<double>(epsilon)));
  moments[0] = m;
  moments[1] = r;
  if (gain != nullptr && bias != nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) y[i] = (x[i] - m) * r * gain[i] + bias[i];
  } else if (gain != nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) y[i] = (x[i] - m) * r * gain[i];
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) y[i] = (x[i] - m) * r;
    if (bias != nullptr) combine_into<SumOf>(y, bias, count);
  }
}

template <bool has_gain>
WEFT_LOOP_INLINE void layer_norm_grad(const float* dy, const float* x, const float* gain, float mean,
                                      float rstd, float* dx, int64_t count) {
  const auto upstream = [=](int64_t i) WEFT_LOOP_LAMBDA { return has_gain ? dy[i] * gain[i] : dy[i]; };
  const double size = static_cast<double>(count);
  const float mean_g = static_cast<float>(sum_pieces(count, upstream) / size);
  const float mean_gx = static_cast<float>(
      sum_pieces(count, [=](int64_t i) WEFT_LOOP_LAMBDA { return upstream(i) * ((x[i] - mean) * rstd); }) /
      size);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) dx[i] = rstd * (upstream(i) - mean_g - (x[i] - mean) * rstd * mean_gx);
}

void layer_norm_grad_row(const float* dy, const float* x, const float* gain, float mean, float rstd,
                         float* dx, float* dscale, float* dbias, int64_t count) {
  // First what reads dy: dx may be the same array.
  if (dscale != nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) dscale[i] += dy[i] * ((x[i] - mean) * rstd);
  }
  if (dbias != nullptr) combine_into<SumOf>(dbias, dy, count);
  if (gain != nullptr) {
    layer_norm_grad<true>(dy, x, gain, mean, rstd, dx, count);
  } else {
    layer_norm_grad<false>(dy, x, gain, mean, rstd, dx, count);
  }
}

double sum_of_squares(const float* x, int64_t count) {
  constexpr int64_t kLanes = 16;
  double partial[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma GCC unroll 16
    for (int64_t j = 0; j < kLanes; ++j)
      partial[j] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
  }
  for (int64_t j = 0; i < count; ++i, ++j)
    partial[j] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  double total = 0;
  for (int64_t j = 0; j < kLanes; ++j) total += partial[j];
  return total;
}

}  // namespace

void add_row_loops(LoopTable& t) {
  t.reduce_row[kReduceSum] = sum_row, t.reduce_row[kReduceMax] = max_row;
  t.reduce_row[kReduceMin] = min_row, t.reduce_row[kReduceProd] = product_row;
  t.reduce_into[kReduceSum] = combine_into<SumOf>, t.reduce_into[kReduceMax] = combine_into<MaxOf>;
  t.reduce_into[kReduceMin] = combine_into<MinOf>, t.reduce_into[kReduceProd] = combine_into<ProductOf>;
  t.scale = scale, t.fill = fill;
  t.softmax_row = softmax_row, t.softmax_grad_row = softmax_grad_row;
  t.log_softmax_row = log_softmax_row, t.log_softmax_grad_row = log_softmax_grad_row;
  t.log_sum_exp_row = log_sum_exp_row, t.scaled_exp_row = scaled_exp_row;
  t.layer_norm_row = layer_norm_row, t.layer_norm_grad_row = layer_norm_grad_row;
  t.sum_of_squares = sum_of_squares;
}

}  // namespace weft::peer::cpu::WEFT_ISA
