// Pooling over one [height, width, lanes] plane.
#include "peer/backend/cpu/loops/math.h"

namespace weft::peer::cpu::WEFT_ISA {
namespace {

// The part of a window that lies inside the input, for output index o of one dimension.
struct Range {
  int64_t begin, end;  // steps of the kernel that fall inside
  int64_t start;       // input position of step 0
};
WEFT_LOOP_INLINE Range range_of(int64_t o, int64_t stride, int64_t pad, int64_t dilation, int64_t kernel,
                                int64_t size) {
  Range r;
  r.start = o * stride - pad;
  r.begin = r.start >= 0 ? 0 : (-r.start + dilation - 1) / dilation;
  r.end = r.start >= size ? 0 : (size - r.start + dilation - 1) / dilation;
  if (r.end > kernel) r.end = kernel;
  return r;
}

// `Lanes` channels side by side; comparing vectors selects without branches. One lane is an ordinary number.
template <int Lanes>
struct Channels {
  typedef float Values __attribute__((vector_size(Lanes * 4)));
  typedef int32_t Indices __attribute__((vector_size(Lanes * 4)));
  typedef float ValuesInMemory __attribute__((vector_size(Lanes * 4), aligned(4), may_alias));
  typedef int32_t IndicesInMemory __attribute__((vector_size(Lanes * 4), aligned(4), may_alias));
};

template <int Lanes>
void max_pool(const float* x, float* y, int32_t* indices, const PoolArgs& a) {
  using C = Channels<Lanes>;
  for (int64_t oh = 0; oh < a.out_h; ++oh) {
    const Range h = range_of(oh, a.stride_h, a.pad_top, a.dilation_h, a.kernel_h, a.in_h);
    for (int64_t ow = 0; ow < a.out_w; ++ow) {
      const Range w = range_of(ow, a.stride_w, a.pad_left, a.dilation_w, a.kernel_w, a.in_w);
      const int64_t first = (h.start + h.begin * a.dilation_h) * a.in_w + w.start + w.begin * a.dilation_w;
      typename C::Values best = typename C::Values{} - __builtin_inff();
      typename C::Indices where = typename C::Indices{} + static_cast<int32_t>(first);
      for (int64_t i = h.begin; i < h.end; ++i) {
        for (int64_t j = w.begin; j < w.end; ++j) {
          const int64_t at = (h.start + i * a.dilation_h) * a.in_w + w.start + j * a.dilation_w;
          const typename C::Values v = *reinterpret_cast<const typename C::ValuesInMemory*>(x + at * Lanes);
          const typename C::Indices better = (v > best) | (v != v);
          best = better ? v : best;
          where = better ? typename C::Indices{} + static_cast<int32_t>(at) : where;
        }
      }
      const int64_t out = (oh * a.out_w + ow) * Lanes;
      *reinterpret_cast<typename C::ValuesInMemory*>(y + out) = best;
      if (indices != nullptr) *reinterpret_cast<typename C::IndicesInMemory*>(indices + out) = where;
    }
  }
}

// Adds in the order of the outputs.
template <int Lanes>
void max_pool_grad(const float* dy, const int32_t* indices, float* dx, const PoolArgs& a) {
  const int64_t plane = a.in_h * a.in_w;
  for (int64_t i = 0; i < plane * Lanes; ++i) dx[i] = 0;
  for (int64_t o = 0; o < a.out_h * a.out_w; ++o) {
    for (int64_t l = 0; l < Lanes; ++l) {
      const int64_t at = indices[o * Lanes + l];
      if (at >= 0 && at < plane) dx[at * Lanes + l] += dy[o * Lanes + l];
    }
  }
}

WEFT_LOOP_INLINE float inverse_window(const PoolArgs& a, const Range& h, const Range& w, int64_t oh,
                                      int64_t ow) {
  int64_t size = (h.end - h.begin) * (w.end - w.begin);
  if (a.count_include_pad != 0) {
    const int64_t top = oh * a.stride_h - a.pad_top, left = ow * a.stride_w - a.pad_left;
    const int64_t bottom = a.in_h + a.pad_bottom, right = a.in_w + a.pad_right;
    const int64_t rows = (top + a.kernel_h < bottom ? top + a.kernel_h : bottom) - top;
    const int64_t columns = (left + a.kernel_w < right ? left + a.kernel_w : right) - left;
    size = rows * columns;
  }
  return size > 0 ? 1.0f / static_cast<float>(size) : 0.0f;
}

template <int Lanes>
void average_pool(const float* x, float* y, const PoolArgs& a) {
  for (int64_t oh = 0; oh < a.out_h; ++oh) {
    const Range h = range_of(oh, a.stride_h, a.pad_top, 1, a.kernel_h, a.in_h);
    for (int64_t ow = 0; ow < a.out_w; ++ow) {
      const Range w = range_of(ow, a.stride_w, a.pad_left, 1, a.kernel_w, a.in_w);
      float sum[Lanes];
      for (int l = 0; l < Lanes; ++l) sum[l] = 0;
      for (int64_t i = h.begin; i < h.end; ++i) {
        for (int64_t j = w.begin; j < w.end; ++j) {
          const float* v = x + ((h.start + i) * a.in_w + w.start + j) * Lanes;
          for (int l = 0; l < Lanes; ++l) sum[l] += v[l];
        }
      }
      const float factor = inverse_window(a, h, w, oh, ow);
      for (int l = 0; l < Lanes; ++l) y[(oh * a.out_w + ow) * Lanes + l] = sum[l] * factor;
    }
  }
}

template <int Lanes>
void average_pool_grad(const float* dy, float* dx, const PoolArgs& a) {
  for (int64_t i = 0; i < a.in_h * a.in_w * Lanes; ++i) dx[i] = 0;
  for (int64_t oh = 0; oh < a.out_h; ++oh) {
    const Range h = range_of(oh, a.stride_h, a.pad_top, 1, a.kernel_h, a.in_h);
    for (int64_t ow = 0; ow < a.out_w; ++ow) {
      const Range w = range_of(ow, a.stride_w, a.pad_left, 1, a.kernel_w, a.in_w);
      const float factor = inverse_window(a, h, w, oh, ow);
      float share[Lanes];
      for (int l = 0; l < Lanes; ++l) share[l] = dy[(oh * a.out_w + ow) * Lanes + l] * factor;
      for (int64_t i = h.begin; i < h.end; ++i) {
        for (int64_t j = w.begin; j < w.end; ++j) {
          float* v = dx + ((h.start + i) * a.in_w + w.start + j) * Lanes;
          for (int l = 0; l < Lanes; ++l) v[l] += share[l];
        }
      }
    }
  }
}

#define WEFT_BY_LANES(function, ...)    \
  switch (args.lanes) {                 \
    case 8:                             \
      return function<8>(__VA_ARGS__);  \
    case 16:                            \
      return function<16>(__VA_ARGS__); \
    default:                            \
      return function<1>(__VA_ARGS__);  \
  }
void max_pool_plane(const float* x, float* y, int32_t* indices, const PoolArgs& args) {
  WEFT_BY_LANES(max_pool, x, y, indices, args)
}
void max_pool_grad_plane(const float* dy, const int32_t* indices, float* dx, const PoolArgs& args) {
  WEFT_BY_LANES(max_pool_grad, dy, indices, dx, args)
}
void average_pool_plane(const float* x, float* y, const PoolArgs& args) {
  WEFT_BY_LANES(average_pool, x, y, args)
}
void average_pool_grad_plane(const float* dy, float* dx, const PoolArgs& args) {
  WEFT_BY_LANES(average_pool_grad, dy, dx, args)
}
#undef WEFT_BY_LANES

}  // namespace

void add_pool_loops(LoopTable& t) {
  t.max_pool_plane = max_pool_plane, t.max_pool_grad_plane = max_pool_grad_plane;
  t.average_pool_plane = average_pool_plane, t.average_pool_grad_plane = average_pool_grad_plane;
}

}  // namespace weft::peer::cpu::WEFT_ISA
