// Shape rules of sliding windows, which convolution and pooling share.
#pragma once

#include "dag/ops/common.h"

namespace weft::dag::ops {

// Windows are laid over x[N, C, spatial...], one to three spatial dims.
inline constexpr int64_t kSpatialDimsMax = 3;

inline Status need_spatial(const ShapeContext& context, size_t i) {
  const int64_t spatial = context.in(i).rank() - 2;
  if (spatial < 1 || spatial > kSpatialDimsMax)
    return refuse_operand(context, i, "[N, C, 1 to 3 spatial dims]");
  return {};
}

// Strides, Dilations (all ones when absent), Pads: one (two) a spatial dim, within bounds that rule out
// overflow.
inline Status need_window_attributes(const ShapeContext& context, size_t spatial) {
  constexpr int64_t kMost = int64_t{1} << 20;
  WEFT_TRY_STATUS(need_ints(context, Attr::Strides, spatial, 1, kMost));
  if (context.attributes.has(Attr::Dilations))
    WEFT_TRY_STATUS(need_ints(context, Attr::Dilations, spatial, 1, kMost));
  WEFT_TRY_STATUS(need_ints(context, Attr::Pads, 2 * spatial, 0, kMost));
  return {};
}

// How many windows of `kernel` taps fit into `size` elements in spatial dim d. REQUIRES:
// need_window_attributes.
inline Result<int64_t> window_count(const Attributes& attributes, size_t d, int64_t size, int64_t kernel,
                                    bool ceil) {
  const Ints &strides = attributes.get_ints(Attr::Strides), &pads = attributes.get_ints(Attr::Pads);
  const Ints& dilations = attributes.get_ints(Attr::Dilations);
  const int64_t stride = strides[d], begin = pads[d], end = pads[strides.size() + d];
  if (kernel < 1 || kernel > int64_t{1} << 20)
    return refuse("a kernel of " + std::to_string(kernel) + " taps");
  const int64_t extent = (dilations.empty() ? 1 : dilations[d]) * (kernel - 1) + 1;
  const int64_t slack = size + begin + end - extent;
  if (slack < 0)
    return refuse("spatial dim " + std::to_string(d) + " of " + std::to_string(size) +
                  " elements is smaller than the window of " + std::to_string(extent));
  int64_t count = (ceil ? slack + stride - 1 : slack) / stride + 1;
  if (ceil && (count - 1) * stride >= size + begin)
    --count;  // the last window must not start in the end padding
  return count;
}

}  // namespace weft::dag::ops
