// Convolutions of our own, for what oneDNN has only reference loops for: few channels, groups whose channels
// fill no block, channels by themselves over three dims. Any groups, 1 to 3 spatial dims; pieces that the
// shapes fix.
#pragma once

#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {

// x[N, G * channels, in] * w[G * filters, channels, taps] -> y[N, G * filters, out]: forward's names.
struct OwnGeometry {
  int64_t samples, groups, channels, filters, taps, in_plane, out_plane;
  WindowArgs window;

  explicit OwnGeometry(const KernelRequest& request);
  int64_t rows() const { return channels * taps; }  // of one group's unfolded x
  // A tap for each element of x: x is its own unfolding.
  bool is_product() const;
  // One window that is all of x, as behind a mean over space: x is its own unfolding, a sample a row.
  bool is_one_window() const;
  bool is_depthwise() const { return channels == 1 && filters == 1 && groups > 1; }
  int64_t x_channels() const { return groups * channels; }
  int64_t y_channels() const { return groups * filters; }
};

KernelResult make_own_convolution(const KernelRequest& request);

// A plain matrix product, for which oneDNN's calls alone take longer.
KernelResult make_one_window(const KernelRequest& request, const OwnGeometry& geometry);
KernelResult make_unfolded(const KernelRequest& request, const OwnGeometry& geometry);  // own_unfolded.cc
// Groups of few channels; declines others (own_grouped.cc).
KernelResult make_grouped_grad_input(const KernelRequest& request, const OwnGeometry& geometry);
KernelResult make_depthwise(const KernelRequest& request, const OwnGeometry& geometry);  // own_depthwise.cc

}  // namespace weft::peer::cpu
