// Sliding windows over up to three spatial dims, which convolution and pooling share. Fewer dims are seen as
// three with leading ones.
#pragma once

#include "peer/backend/reference/kernels.h"

namespace weft::peer::reference {

struct WindowDim {
  int64_t in = 1, out = 1, kernel = 1, stride = 1, dilation = 1, pad_begin = 0, pad_end = 0;
  // The element of x under tap k of window o; outside [0, in) lies the padding.
  int64_t place(int64_t o, int64_t k) const { return o * stride - pad_begin + k * dilation; }
};

struct Windows {
  std::array<WindowDim, 3> dims;
  int64_t in_plane() const { return dims[0].in * dims[1].in * dims[2].in; }
  int64_t out_plane() const { return dims[0].out * dims[1].out * dims[2].out; }
  int64_t taps() const { return dims[0].kernel * dims[1].kernel * dims[2].kernel; }

  // For window `o` (flat in the output's plane): visit(flat place in x's plane, flat tap) for each tap inside
  // x.
  template <typename Visit>
  void for_each_tap(int64_t o, Visit visit) const {
    const auto& [a, b, c] = dims;
    const int64_t oc = o % c.out, ob = o / c.out % b.out, oa = o / (c.out * b.out);
    for (int64_t ka = 0; ka < a.kernel; ++ka) {
      const int64_t xa = a.place(oa, ka);
      if (xa < 0 || xa >= a.in) continue;
      for (int64_t kb = 0; kb < b.kernel; ++kb) {
        const int64_t xb = b.place(ob, kb);
        if (xb < 0 || xb >= b.in) continue;
        for (int64_t kc = 0; kc < c.kernel; ++kc) {
          const int64_t xc = c.place(oc, kc);
          if (xc < 0 || xc >= c.in) continue;
          visit((xa * b.in + xb) * c.in + xc, (ka * b.kernel + kb) * c.kernel + kc);
        }
      }
    }
  }
};

// x and y are [N, C, spatial...]; kernel has one entry a spatial dim.
inline Windows windows_of(const dag::Attributes& attributes, const Shape& x, const Shape& y,
                          std::span<const int64_t> kernel) {
  const Ints &strides = attributes.get_ints(Attr::Strides), &pads = attributes.get_ints(Attr::Pads);
  const Ints& dilations = attributes.get_ints(Attr::Dilations);
  const size_t spatial = kernel.size();
  Windows windows;
  for (size_t d = 0; d < spatial; ++d) {
    WindowDim& dim = windows.dims[3 - spatial + d];
    dim = {.in = x[d + 2],
           .out = y[d + 2],
           .kernel = kernel[d],
           .stride = strides[d],
           .dilation = dilations.empty() ? 1 : dilations[d],
           .pad_begin = pads[d],
           .pad_end = pads[spatial + d]};
  }
  return windows;
}

}  // namespace weft::peer::reference
