// Pooling: each window of each channel's plane.
#include <algorithm>
#include <cmath>
#include <limits>

#include "peer/backend/reference/windows.h"

namespace weft::peer::reference {
namespace {

Windows pool_windows(const Call& c, const Shape& x, const Shape& y) {
  return windows_of(c.attributes, x, y, c.attributes.get_ints(Attr::Kernel));
}

void max_pool(const Call& c) {
  const Windows windows = pool_windows(c, c.shape(0), c.out().spec.shape);
  const int64_t planes = c.shape(0)[0] * c.shape(0)[1];
  for (int64_t p = 0; p < planes; ++p)
    for (int64_t o = 0; o < windows.out_plane(); ++o) {
      double best = -std::numeric_limits<double>::infinity();
      int64_t index = -1;
      windows.for_each_tap(o, [&](int64_t place, int64_t) {
        const double x = c.reals(0)[at(p * windows.in_plane() + place)];
        if (index >= 0 && !(x > best) && !(std::isnan(x) && !std::isnan(best))) return;  // NaN wins
        if (index >= 0 && std::isnan(best)) return;
        best = x;
        index = place;
      });
      c.out(0).reals[at(p * windows.out_plane() + o)] = best;
      c.out(1).wholes[at(p * windows.out_plane() + o)] = index;
    }
}

void max_pool_grad(const Call& c) {
  const AxisView x = axis_view(c.out().spec.shape, 1), y = axis_view(c.shape(0), 1);
  for (int64_t i = 0; i < c.in(0).count(); ++i) {
    const int64_t index = c.wholes(1)[at(i)];
    if (index >= 0 && index < x.inner) c.out().reals[at(i / y.inner * x.inner + index)] += c.reals(0)[at(i)];
  }
}

// How many elements window `o` is divided by: those inside x, or inside x with its padding.
double divisor(const Call& c, const Windows& windows, int64_t o) {
  const bool padding_counts = c.attributes.get_int(Attr::CountIncludePad) != 0;
  int64_t count = 1;
  for (size_t d = 3; d-- > 0;) {
    const WindowDim& dim = windows.dims[d];
    const int64_t first = padding_counts ? -dim.pad_begin : 0;
    const int64_t end = padding_counts ? dim.in + dim.pad_end : dim.in;
    int64_t taps = 0;
    for (int64_t k = 0; k < dim.kernel; ++k) {
      const int64_t place = dim.place(o % dim.out, k);
      taps += place >= first && place < end ? 1 : 0;
    }
    o /= dim.out;
    count *= taps;
  }
  return static_cast<double>(std::max<int64_t>(count, 1));
}

void average_pool(const Call& c) {
  const Windows windows = pool_windows(c, c.shape(0), c.out().spec.shape);
  const int64_t planes = c.shape(0)[0] * c.shape(0)[1];
  for (int64_t p = 0; p < planes; ++p)
    for (int64_t o = 0; o < windows.out_plane(); ++o) {
      double sum = 0;
      windows.for_each_tap(
          o, [&](int64_t place, int64_t) { sum += c.reals(0)[at(p * windows.in_plane() + place)]; });
      c.out().reals[at(p * windows.out_plane() + o)] = sum / divisor(c, windows, o);
    }
}

void average_pool_grad(const Call& c) {
  const Windows windows = pool_windows(c, c.out().spec.shape, c.shape(0));
  const int64_t planes = c.shape(0)[0] * c.shape(0)[1];
  for (int64_t p = 0; p < planes; ++p)
    for (int64_t o = 0; o < windows.out_plane(); ++o) {
      const double share = c.reals(0)[at(p * windows.out_plane() + o)] / divisor(c, windows, o);
      windows.for_each_tap(
          o, [&](int64_t place, int64_t) { c.out().reals[at(p * windows.in_plane() + place)] += share; });
    }
}

}  // namespace

void run_pooling(const Call& call) {
  switch (call.kind) {
    case OpKind::MaxPool:
      return max_pool(call);
    case OpKind::MaxPoolGrad:
      return max_pool_grad(call);
    case OpKind::AveragePool:
      return average_pool(call);
    case OpKind::AveragePoolGrad:
      return average_pool_grad(call);
    default:
      WEFT_CHECK_MSG(false, "not a pooling op");
  }
}

}  // namespace weft::peer::reference
