// Pooling over one [depth, height, width, lanes] plane.
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

WEFT_LOOP_INLINE Range range_of(const WindowArgs& a, int d, int64_t o) {
  return range_of(o, a.stride[d], a.pad[d], a.dilation[d], a.kernel[d], a.in[d]);
}

// f(output, its window's ranges) for every output in order; an output's number counts positions.
template <typename F>
WEFT_LOOP_INLINE void for_each_window(const WindowArgs& a, F f) {
  int64_t output = 0;
  for (int64_t od = 0; od < a.out[0]; ++od) {
    const Range depth = range_of(a, 0, od);
    for (int64_t oh = 0; oh < a.out[1]; ++oh) {
      const Range height = range_of(a, 1, oh);
      for (int64_t ow = 0; ow < a.out[2]; ++ow, ++output) f(output, depth, height, range_of(a, 2, ow));
    }
  }
}
// f(position in the input) for every step of a window that lies inside, in order.
template <typename F>
WEFT_LOOP_INLINE void for_each_step(const WindowArgs& a, const Range& depth, const Range& height,
                                    const Range& width, F f) {
  for (int64_t d = depth.begin; d < depth.end; ++d)
    for (int64_t h = height.begin; h < height.end; ++h) {
      const int64_t row =
          ((depth.start + d * a.dilation[0]) * a.in[1] + height.start + h * a.dilation[1]) * a.in[2];
      for (int64_t w = width.begin; w < width.end; ++w) f(row + width.start + w * a.dilation[2]);
    }
}

template <int Lanes>
void max_pool(const float* x, float* y, int32_t* indices, const PoolArgs& args) {
  using C = Channels<Lanes>;
  const WindowArgs a = args.window;
  for_each_window(a, [&](int64_t output, const Range& depth, const Range& height, const Range& width) {
    const int64_t row =
        (depth.start + depth.begin * a.dilation[0]) * a.in[1] + height.start + height.begin * a.dilation[1];
    const int64_t first = row * a.in[2] + width.start + width.begin * a.dilation[2];
    typename C::Values best = typename C::Values{} - __builtin_inff();
    typename C::Indices where = typename C::Indices{} + static_cast<int32_t>(first);
    for_each_step(a, depth, height, width, [&](int64_t at) {
      const typename C::Values v = *reinterpret_cast<const typename C::ValuesInMemory*>(x + at * Lanes);
      const typename C::Indices better = (v > best) | (v != v);
      best = better ? v : best;
      where = better ? typename C::Indices{} + static_cast<int32_t>(at) : where;
    });
    *reinterpret_cast<typename C::ValuesInMemory*>(y + output * Lanes) = best;
    if (indices != nullptr) *reinterpret_cast<typename C::IndicesInMemory*>(indices + output * Lanes) = where;
  });
}

// Adds in the order of the outputs.
template <int Lanes>
void max_pool_grad(const float* dy, const int32_t* indices, float* dx, const PoolArgs& args) {
  const WindowArgs& a = args.window;
  const int64_t plane = a.in[0] * a.in[1] * a.in[2], outputs = a.out[0] * a.out[1] * a.out[2];
  for (int64_t i = 0; i < plane * Lanes; ++i) dx[i] = 0;
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t l = 0; l < Lanes; ++l) {
      const int64_t at = indices[o * Lanes + l];
      if (at >= 0 && at < plane) dx[at * Lanes + l] += dy[o * Lanes + l];
    }
  }
}

// What counts of a window in one dim, where padding counts too.
WEFT_LOOP_INLINE int64_t padded_extent(const PoolArgs& args, int d, const Range& range) {
  const int64_t end = args.window.in[d] + args.pad_end[d], last = range.start + args.window.kernel[d];
  return (last < end ? last : end) - range.start;
}
WEFT_LOOP_INLINE float inverse_window(const PoolArgs& args, const Range& depth, const Range& height,
                                      const Range& width) {
  int64_t size = (depth.end - depth.begin) * (height.end - height.begin) * (width.end - width.begin);
  if (args.count_include_pad != 0)
    size = padded_extent(args, 0, depth) * padded_extent(args, 1, height) * padded_extent(args, 2, width);
  return size > 0 ? 1.0f / static_cast<float>(size) : 0.0f;
}

template <int Lanes>
void average_pool(const float* x, float* y, const PoolArgs& args) {
  const WindowArgs a = args.window;
  for_each_window(a, [&](int64_t output, const Range& depth, const Range& height, const Range& width) {
    float sum[Lanes];
    for (int l = 0; l < Lanes; ++l) sum[l] = 0;
    for_each_step(a, depth, height, width, [&](int64_t at) {
      for (int l = 0; l < Lanes; ++l) sum[l] += x[at * Lanes + l];
    });
    const float factor = inverse_window(args, depth, height, width);
    for (int l = 0; l < Lanes; ++l) y[output * Lanes + l] = sum[l] * factor;
  });
}

template <int Lanes>
void average_pool_grad(const float* dy, float* dx, const PoolArgs& args) {
  const WindowArgs a = args.window;
  for (int64_t i = 0; i < a.in[0] * a.in[1] * a.in[2] * Lanes; ++i) dx[i] = 0;
  for_each_window(a, [&](int64_t output, const Range& depth, const Range& height, const Range& width) {
    const float factor = inverse_window(args, depth, height, width);
    float share[Lanes];
    for (int l = 0; l < Lanes; ++l) share[l] = dy[output * Lanes + l] * factor;
    for_each_step(a, depth, height, width, [&](int64_t at) {
      for (int l = 0; l < Lanes; ++l) dx[at * Lanes + l] += share[l];
    });
  });
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
