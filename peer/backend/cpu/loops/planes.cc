// Loops over one plane of an image: [positions, lanes] with 1, 8 or 16 channels innermost. Normalisation,
// sums, and transposition between the layouts.
#include "peer/backend/cpu/loops/math.h"
#include "peer/backend/cpu/loops/transpose.h"

namespace weft::peer::cpu::WEFT_ISA {
namespace {

constexpr int64_t kWide = 32;     // floats an iteration; a multiple of every lane count
constexpr int64_t kPiece = 8192;  // floats that are summed in single precision before going to double

// A per-channel array repeated to the width of an iteration.
template <int Lanes>
struct Repeated {
  float at[kWide];
  WEFT_LOOP_INLINE explicit Repeated(const float* values) {
    for (int64_t j = 0; j < kWide; ++j) at[j] = values[j % Lanes];
  }
};

// Sums f(i, j) over all elements i of each lane; j = i % 32.
template <int Lanes, typename Function>
WEFT_LOOP_INLINE void sum_lanes(int64_t count, double* sums, Function f) {
  for (int lane = 0; lane < Lanes; ++lane) sums[lane] = 0;
  for (int64_t start = 0; start < count; start += kPiece) {
    const int64_t end = count - start < kPiece ? count : start + kPiece;
    float partial[kWide];
    for (int64_t j = 0; j < kWide; ++j) partial[j] = 0;
    int64_t i = start;
    for (; i + kWide <= end; i += kWide) {
#pragma GCC unroll 32
      for (int64_t j = 0; j < kWide; ++j) partial[j] += f(i + j, j);
    }
    for (int64_t j = 0; i < end; ++i, ++j) partial[j] += f(i, j);
    for (int64_t j = 0; j < kWide; ++j) sums[j % Lanes] += static_cast<double>(partial[j]);
  }
}

// y[i] = f(i, i % 32)
template <typename Function>
WEFT_LOOP_INLINE void map_lanes(int64_t count, float* y, Function f) {
  int64_t i = 0;
  for (; i + kWide <= count; i += kWide) {
    float result[kWide];
#pragma GCC unroll 32
    for (int64_t j = 0; j < kWide; ++j) result[j] = f(i + j, j);
#pragma GCC unroll 32
    for (int64_t j = 0; j < kWide; ++j) y[i + j] = result[j];
  }
  for (int64_t j = 0; i < count; ++i, ++j) y[i] = f(i, j);
}

template <int Lanes>
void moments(const float* x, int64_t positions, double* mean, double* m2) {
  const int64_t count = positions * Lanes;
  const double size = static_cast<double>(positions);
  sum_lanes<Lanes>(count, mean, [x](int64_t i, int64_t) WEFT_LOOP_LAMBDA { return x[i]; });
  float centre[Lanes];
  for (int lane = 0; lane < Lanes; ++lane) {
    mean[lane] /= size;
    centre[lane] = static_cast<float>(mean[lane]);
  }
  const Repeated<Lanes> c(centre);
  sum_lanes<Lanes>(count, m2, [&](int64_t i, int64_t j) WEFT_LOOP_LAMBDA {
    const float d = x[i] - c.at[j];
    return d * d;
  });
  for (int lane = 0; lane < Lanes; ++lane) {
    const double off = mean[lane] - static_cast<double>(centre[lane]);  // the centre was rounded
    m2[lane] -= size * off * off;
    if (m2[lane] < 0) m2[lane] = 0;
  }
}

template <int Lanes>
void normalise(const float* x, float* y, int64_t positions, const float* mean, const float* factor,
               const float* bias) {
  const Repeated<Lanes> m(mean), f(factor), b(bias);
  map_lanes(positions * Lanes, y,
            [&](int64_t i, int64_t j) WEFT_LOOP_LAMBDA { return (x[i] - m.at[j]) * f.at[j] + b.at[j]; });
}

template <int Lanes>
void grad_sums(const float* dy, const float* x, int64_t positions, const float* mean, double* sum_dy,
               double* sum_dy_x) {
  const Repeated<Lanes> m(mean);
  // A piece at a time, so that the second sum finds dy in the cache.
  double piece[Lanes];
  for (int lane = 0; lane < Lanes; ++lane) sum_dy[lane] = sum_dy_x[lane] = 0;
  const int64_t count = positions * Lanes;
  for (int64_t start = 0; start < count; start += kPiece) {
    const int64_t length = count - start < kPiece ? count - start : kPiece;
    const float* d = dy + start;
    const float* v = x + start;
    sum_lanes<Lanes>(length, piece, [d](int64_t i, int64_t) WEFT_LOOP_LAMBDA { return d[i]; });
    for (int lane = 0; lane < Lanes; ++lane) sum_dy[lane] += piece[lane];
    sum_lanes<Lanes>(length, piece,
                     [&](int64_t i, int64_t j) WEFT_LOOP_LAMBDA { return d[i] * (v[i] - m.at[j]); });
    for (int lane = 0; lane < Lanes; ++lane) sum_dy_x[lane] += piece[lane];
  }
}

template <int Lanes>
void grad(const float* dy, const float* x, float* dx, int64_t positions, const float* mean,
          const float* factor, const float* mean_dy, const float* slope) {
  const Repeated<Lanes> m(mean), f(factor), d(mean_dy), s(slope);
  map_lanes(positions * Lanes, dx, [&](int64_t i, int64_t j) WEFT_LOOP_LAMBDA {
    return f.at[j] * (dy[i] - d.at[j] - (x[i] - m.at[j]) * s.at[j]);
  });
}

template <int Lanes>
void sum_all(const float* x, int64_t positions, float* sum) {
  double sums[Lanes];
  sum_lanes<Lanes>(positions * Lanes, sums, [x](int64_t i, int64_t) WEFT_LOOP_LAMBDA { return x[i]; });
  for (int lane = 0; lane < Lanes; ++lane) sum[lane] = static_cast<float>(sums[lane]);
}

template <int Lanes>
void fill_all(float* y, int64_t positions, const float* values) {
  const Repeated<Lanes> v(values);
  map_lanes(positions * Lanes, y, [&](int64_t, int64_t j) WEFT_LOOP_LAMBDA { return v.at[j]; });
}

#define WEFT_BY_LANES(function, ...)    \
  switch (lanes) {                      \
    case 8:                             \
      return function<8>(__VA_ARGS__);  \
    case 16:                            \
      return function<16>(__VA_ARGS__); \
    default:                            \
      return function<1>(__VA_ARGS__);  \
  }

void moments_plane(const float* x, int64_t positions, int lanes, double* mean, double* m2) {
  WEFT_BY_LANES(moments, x, positions, mean, m2)
}
void normalise_plane(const float* x, float* y, int64_t positions, int lanes, const float* mean,
                     const float* factor, const float* bias) {
  WEFT_BY_LANES(normalise, x, y, positions, mean, factor, bias)
}
void norm_grad_sums_plane(const float* dy, const float* x, int64_t positions, int lanes, const float* mean,
                          double* sum_dy, double* sum_dy_x) {
  WEFT_BY_LANES(grad_sums, dy, x, positions, mean, sum_dy, sum_dy_x)
}
void norm_grad_plane(const float* dy, const float* x, float* dx, int64_t positions, int lanes,
                     const float* mean, const float* factor, const float* mean_dy, const float* slope) {
  WEFT_BY_LANES(grad, dy, x, dx, positions, mean, factor, mean_dy, slope)
}
void sum_plane(const float* x, int64_t positions, int lanes, float* sum) {
  WEFT_BY_LANES(sum_all, x, positions, sum)
}
void fill_plane(float* y, int64_t positions, int lanes, const float* values) {
  WEFT_BY_LANES(fill_all, y, positions, values)
}
#undef WEFT_BY_LANES

void transpose(const float* source, int64_t source_stride, float* target, int64_t target_stride, int64_t rows,
               int64_t columns) {
  constexpr int64_t kTile = 32;  // a tile of both sides stays in the first-level cache
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    const int64_t r1 = rows - r0 < kTile ? rows : r0 + kTile;
    for (int64_t c0 = 0; c0 < columns; c0 += kTile) {
      const int64_t c1 = columns - c0 < kTile ? columns : c0 + kTile;
      const int64_t r4 = r0 + (r1 - r0) / 4 * 4, c4 = c0 + (c1 - c0) / 4 * 4;
      for (int64_t c = c0; c < c4; c += 4) {
        for (int64_t r = r0; r < r4; r += 4) {
          transpose_4x4(source + r * source_stride + c, source_stride, target + c * target_stride + r,
                        target_stride);
        }
      }
      for (int64_t r = r0; r < r1; ++r) {
        for (int64_t c = r < r4 ? c4 : c0; c < c1; ++c)
          target[c * target_stride + r] = source[r * source_stride + c];
      }
    }
  }
}

}  // namespace

void add_plane_loops(LoopTable& t) {
  t.moments_plane = moments_plane, t.normalise_plane = normalise_plane;
  t.norm_grad_sums_plane = norm_grad_sums_plane, t.norm_grad_plane = norm_grad_plane;
  t.sum_plane = sum_plane, t.fill_plane = fill_plane, t.transpose = transpose;
}

}  // namespace weft::peer::cpu::WEFT_ISA
