// Where samples between the elements of a plane lie, and which elements each of them reads: the geometry of
// GridSample, RoiAlign and DeformColumns, which every backend computes in double and in this one way.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "dag/graph.h"

namespace weft::peer::reference {

// The planes of x: depth, height, width. Planes of two dims have depth 1.
struct PlaneDims {
  std::array<int64_t, 3> size;
  int64_t count() const { return size[0] * size[1] * size[2]; }
};
PlaneDims plane_dims(const dag::Shape& x);  // x [N, C, spatial...]

// Sample i is the sum over k in [starts[i], starts[i + 1]) of weights[k] times element from[k] of the plane.
// slopes[d][k]: by how much weights[k] grows as the sample's place moves along dim d. Every from[k] lies in
// the plane.
struct Samples {
  std::vector<int64_t> starts{0};
  std::vector<int64_t> from;
  std::vector<double> weights;
  std::array<std::vector<double>, 3> slopes;

  int64_t count() const { return static_cast<int64_t>(starts.size()) - 1; }
  void clear();
};

// ---- GridSample ----

struct GridRule {
  enum class Mode { Nearest, Linear, Cubic } mode;
  enum class Padding { Zeros, Border, Reflection } padding;
  bool align_corners;
  size_t dims;     // spatial ones: 2 or 3
  bool is_single;  // coordinates are F32
};
GridRule grid_rule(const dag::Attributes& attributes, const dag::TensorSpec& x);

// Appends a sample for each point of `grid`, `rule.dims` coordinates each (the innermost dim's first, -1 to 1
// over the plane). Slopes are those by the grid's coordinates, in the grid's order.
void add_grid_samples(const GridRule& rule, const PlaneDims& plane, std::span<const double> grid,
                      Samples& samples);

// ---- RoiAlign ----

struct RoiRule {
  int64_t height, width;  // of the result
  int64_t sampling_ratio;
  double scale;
  bool align_corners;  // false: the region is moved by half a pixel
};
RoiRule roi_rule(const dag::Attributes& attributes);

// What bin (h, w) of a region (x1, y1, x2, y2) reads: as many samples as lie on the map; `total` is how many
// there are, with those beside it.
struct RoiBin {
  Samples samples;
  double total = 0;
};
void set_roi_bin(const RoiRule& rule, const PlaneDims& plane, std::span<const double> region, int64_t h,
                 int64_t w, RoiBin& bin);

// ---- DeformColumns ----

// Appends one sample at (y, x), linear; what lies beside the plane counts as zero. slopes[0] by y, [1] by x.
void add_linear_sample(const PlaneDims& plane, double y, double x, Samples& samples);

}  // namespace weft::peer::reference
