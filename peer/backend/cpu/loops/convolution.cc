// What convolutions of our own are made of: the copies that make one a matrix product, and loops over planes
// for those whose channels do not mix.
#include "peer/backend/cpu/loops/isa.h"

namespace weft::peer::cpu::WEFT_ISA {
namespace {

WEFT_LOOP_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
WEFT_LOOP_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// Where tap k of dim d stands below output o; outside [0, in) lies the padding.
WEFT_LOOP_INLINE int64_t place(const WindowArgs& a, int d, int64_t o, int64_t k) {
  return o * a.stride[d] - a.pad[d] + k * a.dilation[d];
}
WEFT_LOOP_INLINE bool inside(const WindowArgs& a, int d, int64_t i) { return i >= 0 && i < a.in[d]; }

// The outputs of the innermost dim whose tap k stands inside: [begin, end), within [low, high).
struct Range {
  int64_t begin, end;
};
WEFT_LOOP_INLINE Range valid_outputs(const WindowArgs& a, int64_t k, int64_t low, int64_t high) {
  const int64_t stride = a.stride[2],
                first = a.pad[2] - k * a.dilation[2];  // the first o with o * stride >= it
  const int64_t last = a.in[2] - 1 + first;
  const int64_t begin = first <= 0 ? 0 : (first + stride - 1) / stride;
  const int64_t end = last < 0 ? 0 : last / stride + 1;
  Range r{most(begin, low), least(end, high)};
  if (r.end < r.begin) r.begin = r.end = low;
  return r;
}

// Calls f(column, count, x, step) for each stretch of columns that lie in one line of outputs: their first
// element of x, null where the line of x is padding, and f's own range of what is inside.
template <typename Function>
WEFT_LOOP_INLINE void for_each_line(const WindowArgs& a, int64_t tap, int64_t position, int64_t positions,
                                    Function f) {
  const int64_t kw = tap % a.kernel[2], kh = tap / a.kernel[2] % a.kernel[1],
                kd = tap / (a.kernel[2] * a.kernel[1]);
  int64_t line = position / a.out[2], low = position % a.out[2];
  for (int64_t column = 0; column < positions; ++line) {
    const int64_t count = least(a.out[2] - low, positions - column);
    const int64_t d = place(a, 0, line / a.out[1], kd), h = place(a, 1, line % a.out[1], kh);
    const Range inner =
        inside(a, 0, d) && inside(a, 1, h) ? valid_outputs(a, kw, low, low + count) : Range{low, low};
    const int64_t first = (d * a.in[1] + h) * a.in[2] + place(a, 2, inner.begin, kw);
    f(column, count, inner.begin - low, inner.end - low, first);
    column += count;
    low = 0;
  }
}

void unfold(const float* x, const WindowArgs& a, int64_t row, int64_t rows, int64_t position,
            int64_t positions, float* columns, int64_t column_stride) {
  const int64_t taps = a.kernel[0] * a.kernel[1] * a.kernel[2], plane = a.in[0] * a.in[1] * a.in[2];
  const int64_t stride = a.stride[2];
  for (int64_t r = row; r < row + rows; ++r) {
    const float* channel = x + r / taps * plane;
    float* target = columns + (r - row) * column_stride;
    for_each_line(a, r % taps, position, positions,
                  [=](int64_t column, int64_t count, int64_t begin, int64_t end, int64_t first)
                      WEFT_LOOP_LAMBDA {
                        float* t = target + column;
                        for (int64_t i = 0; i < begin; ++i) t[i] = 0;
                        if (stride == 1) {
                          for (int64_t i = begin; i < end; ++i) t[i] = channel[first + i - begin];
                        } else {
                          for (int64_t i = begin; i < end; ++i) t[i] = channel[first + (i - begin) * stride];
                        }
                        for (int64_t i = end; i < count; ++i) t[i] = 0;
                      });
  }
}

void fold(const float* columns, int64_t column_stride, const WindowArgs& a, int64_t row, int64_t rows,
          int64_t position, int64_t positions, float* x) {
  const int64_t taps = a.kernel[0] * a.kernel[1] * a.kernel[2], plane = a.in[0] * a.in[1] * a.in[2];
  const int64_t stride = a.stride[2];
  for (int64_t r = row; r < row + rows; ++r) {
    float* channel = x + r / taps * plane;
    const float* source = columns + (r - row) * column_stride;
    for_each_line(a, r % taps, position, positions,
                  [=](int64_t column, int64_t, int64_t begin, int64_t end, int64_t first) WEFT_LOOP_LAMBDA {
                    const float* s = source + column;
                    if (stride == 1) {
                      for (int64_t i = begin; i < end; ++i) channel[first + i - begin] += s[i];
                    } else {
                      for (int64_t i = begin; i < end; ++i) channel[first + (i - begin) * stride] += s[i];
                    }
                  });
  }
}

// ---- channels by themselves

template <int Lanes>
struct Channels {
  typedef float Values __attribute__((vector_size(Lanes * 4)));
  typedef float InMemory __attribute__((vector_size(Lanes * 4), aligned(4), may_alias));
  // References, because a vector that is returned by value has another ABI in every instruction set.
  static WEFT_LOOP_INLINE const InMemory& at(const float* x) { return *reinterpret_cast<const InMemory*>(x); }
  static WEFT_LOOP_INLINE InMemory& at(float* x) { return *reinterpret_cast<InMemory*>(x); }
};

// The outputs [begin, end) of one line all of whose taps in the innermost dim are inside.
WEFT_LOOP_INLINE Range whole_outputs(const WindowArgs& a) {
  const Range first = valid_outputs(a, 0, 0, a.out[2]), last = valid_outputs(a, a.kernel[2] - 1, 0, a.out[2]);
  Range r{most(first.begin, last.begin), least(first.end, last.end)};
  if (first.end <= first.begin || last.end <= last.begin || r.end < r.begin) r.begin = r.end = 0;
  return r;
}

// `Count` neighbouring outputs of a line at once, so that each tap's weights are read once for all of them.
template <int Lanes, int Count, bool Whole>
WEFT_LOOP_INLINE void depthwise_outputs(const float* x, const float* w, const float* bias, float* y,
                                        const WindowArgs& a, int64_t od, int64_t oh, int64_t ow) {
  using C = Channels<Lanes>;
  typename C::Values sum[Count] = {};
  for (int i = 0; i < Count; ++i)
    if (bias != nullptr) sum[i] = C::at(bias);
  for (int64_t kd = 0; kd < a.kernel[0]; ++kd) {
    const int64_t d = place(a, 0, od, kd);
    if (!inside(a, 0, d)) continue;
    for (int64_t kh = 0; kh < a.kernel[1]; ++kh) {
      const int64_t h = place(a, 1, oh, kh);
      if (!inside(a, 1, h)) continue;
      const float* line = x + (d * a.in[1] + h) * a.in[2] * Lanes;
      const float* taps = w + (kd * a.kernel[1] + kh) * a.kernel[2] * Lanes;
      for (int64_t kw = 0; kw < a.kernel[2]; ++kw) {
        const typename C::Values weight = C::at(taps + kw * Lanes);
        const int64_t first = place(a, 2, ow, kw);
#pragma GCC unroll 8
        for (int i = 0; i < Count; ++i) {
          const int64_t at = first + i * a.stride[2];
          if (Whole || inside(a, 2, at)) sum[i] += weight * C::at(line + at * Lanes);
        }
      }
    }
  }
  for (int i = 0; i < Count; ++i) C::at(y + i * Lanes) = sum[i];
}

template <int Lanes>
void depthwise(const float* x, const float* w, const float* bias, float* y, const WindowArgs& a) {
  constexpr int kCount = 6;
  const Range whole = whole_outputs(a);
  for (int64_t od = 0; od < a.out[0]; ++od) {
    for (int64_t oh = 0; oh < a.out[1]; ++oh) {
      float* line = y + (od * a.out[1] + oh) * a.out[2] * Lanes;
      int64_t ow = 0;
      for (; ow < whole.begin; ++ow)
        depthwise_outputs<Lanes, 1, false>(x, w, bias, line + ow * Lanes, a, od, oh, ow);
      for (; ow + kCount <= whole.end; ow += kCount)
        depthwise_outputs<Lanes, kCount, true>(x, w, bias, line + ow * Lanes, a, od, oh, ow);
      for (; ow < whole.end; ++ow)
        depthwise_outputs<Lanes, 1, true>(x, w, bias, line + ow * Lanes, a, od, oh, ow);
      for (; ow < a.out[2]; ++ow)
        depthwise_outputs<Lanes, 1, false>(x, w, bias, line + ow * Lanes, a, od, oh, ow);
    }
  }
}

// Adds every output's cotangent to the places of its taps, outputs in order.
template <int Lanes>
void depthwise_grad_input(const float* dy, const float* w, float* dx, const WindowArgs& a) {
  using C = Channels<Lanes>;
  for (int64_t i = 0; i < a.in[0] * a.in[1] * a.in[2] * Lanes; ++i) dx[i] = 0;
  for (int64_t od = 0; od < a.out[0]; ++od) {
    for (int64_t oh = 0; oh < a.out[1]; ++oh) {
      const float* upstream = dy + (od * a.out[1] + oh) * a.out[2] * Lanes;
      for (int64_t kd = 0; kd < a.kernel[0]; ++kd) {
        const int64_t d = place(a, 0, od, kd);
        if (!inside(a, 0, d)) continue;
        for (int64_t kh = 0; kh < a.kernel[1]; ++kh) {
          const int64_t h = place(a, 1, oh, kh);
          if (!inside(a, 1, h)) continue;
          float* line = dx + (d * a.in[1] + h) * a.in[2] * Lanes;
          for (int64_t kw = 0; kw < a.kernel[2]; ++kw) {
            const typename C::Values weight = C::at(w + ((kd * a.kernel[1] + kh) * a.kernel[2] + kw) * Lanes);
            const Range r = valid_outputs(a, kw, 0, a.out[2]);
            for (int64_t ow = r.begin; ow < r.end; ++ow) {
              float* target = line + place(a, 2, ow, kw) * Lanes;
              C::at(target) += weight * C::at(upstream + ow * Lanes);
            }
          }
        }
      }
    }
  }
}

// One tap's sum over the outputs in order, in four sums by turns that are added at the end.
template <int Lanes>
WEFT_LOOP_INLINE void depthwise_tap(const float* x, const float* dy, float* dw, const WindowArgs& a,
                                    int64_t kd, int64_t kh, int64_t kw) {
  using C = Channels<Lanes>;
  typename C::Values sum[4] = {};
  const Range r = valid_outputs(a, kw, 0, a.out[2]);
  const int64_t step = a.stride[2] * Lanes;
  for (int64_t od = 0; od < a.out[0]; ++od) {
    const int64_t d = place(a, 0, od, kd);
    if (!inside(a, 0, d)) continue;
    for (int64_t oh = 0; oh < a.out[1]; ++oh) {
      const int64_t h = place(a, 1, oh, kh);
      if (!inside(a, 1, h)) continue;
      const float* source = x + ((d * a.in[1] + h) * a.in[2] + place(a, 2, r.begin, kw)) * Lanes;
      const float* upstream = dy + ((od * a.out[1] + oh) * a.out[2] + r.begin) * Lanes;
      int64_t i = 0;
      for (; i + 4 <= r.end - r.begin; i += 4) {
#pragma GCC unroll 4
        for (int64_t j = 0; j < 4; ++j)
          sum[j] += C::at(source + (i + j) * step) * C::at(upstream + (i + j) * Lanes);
      }
      for (; i < r.end - r.begin; ++i) sum[0] += C::at(source + i * step) * C::at(upstream + i * Lanes);
    }
  }
  C::at(dw) += (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

template <int Lanes>
void depthwise_grad_weight(const float* x, const float* dy, float* dw, const WindowArgs& a) {
  for (int64_t kd = 0; kd < a.kernel[0]; ++kd)
    for (int64_t kh = 0; kh < a.kernel[1]; ++kh)
      for (int64_t kw = 0; kw < a.kernel[2]; ++kw)
        depthwise_tap<Lanes>(x, dy, dw + ((kd * a.kernel[1] + kh) * a.kernel[2] + kw) * Lanes, a, kd, kh, kw);
}

// ---- groups of 8 channels

// `Count` neighbouring outputs of one tap: their places in x are read and written once for eight channels of
// y.
template <int Count>
WEFT_LOOP_INLINE void grouped_outputs(const float* dy, const float* w, float* dx, int64_t step) {
  using C = Channels<8>;
  typename C::Values sum[Count];
  for (int i = 0; i < Count; ++i) sum[i] = C::at(dx + i * step);
#pragma GCC unroll 8
  for (int64_t m = 0; m < 8; ++m) {
    const typename C::Values weight = C::at(w + m * 8);
#pragma GCC unroll 8
    for (int i = 0; i < Count; ++i) sum[i] += weight * dy[i * 8 + m];
  }
  for (int i = 0; i < Count; ++i) C::at(dx + i * step) = sum[i];
}

WEFT_LOOP_INLINE void grouped_line(const float* dy, const float* w, float* dx, const WindowArgs& a,
                                   int64_t kw) {
  constexpr int kCount = 6;
  const Range r = valid_outputs(a, kw, 0, a.out[2]);
  const int64_t step = a.stride[2] * 8;
  float* target = dx + place(a, 2, r.begin, kw) * 8;
  int64_t i = 0;
  for (; i + kCount <= r.end - r.begin; i += kCount)
    grouped_outputs<kCount>(dy + (r.begin + i) * 8, w, target + i * step, step);
  for (; i < r.end - r.begin; ++i) grouped_outputs<1>(dy + (r.begin + i) * 8, w, target + i * step, step);
}

void grouped_grad_input_plane(const float* dy, const float* w, float* dx, const WindowArgs& a) {
  for (int64_t od = 0; od < a.out[0]; ++od) {
    for (int64_t oh = 0; oh < a.out[1]; ++oh) {
      const float* upstream = dy + (od * a.out[1] + oh) * a.out[2] * 8;
      for (int64_t kd = 0; kd < a.kernel[0]; ++kd) {
        const int64_t d = place(a, 0, od, kd);
        if (!inside(a, 0, d)) continue;
        for (int64_t kh = 0; kh < a.kernel[1]; ++kh) {
          const int64_t h = place(a, 1, oh, kh);
          if (!inside(a, 1, h)) continue;
          const float* taps = w + (kd * a.kernel[1] + kh) * a.kernel[2] * 64;
          for (int64_t kw = 0; kw < a.kernel[2]; ++kw)
            grouped_line(upstream, taps + kw * 64, dx + (d * a.in[1] + h) * a.in[2] * 8, a, kw);
        }
      }
    }
  }
}

void depthwise_plane(const float* x, const float* w, const float* bias, float* y, const WindowArgs& a,
                     int lanes) {
  return lanes == 8 ? depthwise<8>(x, w, bias, y, a) : depthwise<16>(x, w, bias, y, a);
}
void depthwise_grad_input_plane(const float* dy, const float* w, float* dx, const WindowArgs& a, int lanes) {
  return lanes == 8 ? depthwise_grad_input<8>(dy, w, dx, a) : depthwise_grad_input<16>(dy, w, dx, a);
}
void depthwise_grad_weight_plane(const float* x, const float* dy, float* dw, const WindowArgs& a, int lanes) {
  return lanes == 8 ? depthwise_grad_weight<8>(x, dy, dw, a) : depthwise_grad_weight<16>(x, dy, dw, a);
}

}  // namespace

void add_convolution_loops(LoopTable& t) {
#if defined(__AVX512F__)
  t.lanes = 16;
#else
  t.lanes = 8;
#endif
  t.unfold = unfold, t.fold = fold;
  t.grouped_grad_input_plane = grouped_grad_input_plane;
  t.depthwise_plane = depthwise_plane;
  t.depthwise_grad_input_plane = depthwise_grad_input_plane;
  t.depthwise_grad_weight_plane = depthwise_grad_weight_plane;
}

}  // namespace weft::peer::cpu::WEFT_ISA
