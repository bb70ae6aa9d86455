// Sampling between pixels: at the points of a grid and in regions. What Resize does is in lower_resize.cc.
#include <algorithm>

#include "dag/onnx/lowering.h"

namespace weft::onnx {

Status lower_resize(NodeContext& n);    // lower_resize.cc
Status lower_upsample(NodeContext& n);  // lower_resize.cc

namespace {

// ---- GridSample ----

Status lower_grid_sample(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  std::string mode = n.string_attr("mode", "linear");
  if (mode == "bilinear") mode = "linear";
  if (mode == "bicubic") mode = "cubic";
  WEFT_TRY(const Item grid, n.cast(n.in(1), n.in(0).dtype()));
  return n.give(n.emit(OpKind::GridSample, {n.in(0), grid},
                       {{Attr::Mode, mode},
                        {Attr::PaddingMode, n.string_attr("padding_mode", "zeros")},
                        {Attr::AlignCorners, int64_t{n.int_attr("align_corners", 0) != 0}}}));
}

// Where the points of an unmoved grid stand along a dim: over its elements' middles, from -1 to 1 when these
// are to stand on the corners.
std::vector<double> base_line(int64_t size, bool align_corners) {
  std::vector<double> line;
  const auto n = static_cast<double>(size);
  for (int64_t i = 0; i < size; ++i) {
    const auto k = static_cast<double>(i);
    line.push_back(!align_corners ? (2 * k + 1) / n - 1 : size > 1 ? 2 * k / (n - 1) - 1 : 0);
  }
  return line;
}

// [points, dims + 1]: the coordinates of each point, innermost dim first, and a one.
std::vector<double> base_grid(const Shape& spatial, bool align_corners) {
  std::vector<std::vector<double>> lines;
  int64_t points = 1;
  for (const int64_t size : spatial) {
    lines.push_back(base_line(size, align_corners));
    points *= size;
  }
  std::vector<double> grid;
  for (int64_t p = 0; p < points; ++p) {
    int64_t rest = p;
    for (size_t d = spatial.size(); d-- > 0;) {
      grid.push_back(lines[d][static_cast<size_t>(rest % spatial[d])]);
      rest /= spatial[d];
    }
    grid.push_back(1);
  }
  return grid;
}

constexpr int64_t kGridPointsMost = int64_t{1} << 24;

// Each point of the grid, with a one, times the image's matrix.
Status lower_affine_grid(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const Item& theta = n.in(0);
  WEFT_TRY(const Ints size, n.ints(1, "size"));
  const auto dims = static_cast<int64_t>(size.size()) - 2;
  if (dims != 2 && dims != 3) return n.invalid("its size " + to_string(size) + " is not one of 4 or 5 dims");
  if (theta.shape() != Shape{size[0], dims, dims + 1})
    return n.invalid("theta " + to_string(theta.spec) + " does not go with size " + to_string(size));
  const Shape spatial(size.begin() + 2, size.end());
  const auto points = dag::checked_element_count(spatial);
  if (!points || *points < 1 || *points > kGridPointsMost)
    return n.unsupported("a grid of size " + to_string(size));
  const auto grid = base_grid(spatial, n.int_attr("align_corners", 0) != 0);
  const Item base = n.constant(dag::from_doubles({theta.dtype(), {*points, dims + 1}}, grid));
  WEFT_TRY(const Item moved, n.emit(OpKind::MatMul, {base, theta}, {{Attr::TransB, int64_t{1}}}));
  Shape shape{size[0]};
  shape.insert(shape.end(), spatial.begin(), spatial.end());
  shape.push_back(dims);
  return n.give(n.reshape(moved, shape));
}

// ---- RoiAlign ----

Status lower_roi_align(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(3));
  // Before opset 16 there was no half pixel.
  const std::string coordinates =
      n.string_attr("coordinate_transformation_mode", n.opset() < 16 ? "output_half_pixel" : "half_pixel");
  if (coordinates != "half_pixel" && coordinates != "output_half_pixel")
    return n.unsupported("coordinate_transformation_mode '" + coordinates.substr(0, 32) + "'");
  WEFT_TRY(const Item rois, n.cast(n.in(1), n.in(0).dtype()));
  return n.give(n.emit(OpKind::RoiAlign, {n.in(0), rois, n.in(2)},
                       {{Attr::Mode, n.string_attr("mode", "avg")},
                        {Attr::Sizes, Ints{n.int_attr("output_height", 1), n.int_attr("output_width", 1)}},
                        {Attr::SamplingRatio, n.int_attr("sampling_ratio", 0)},
                        {Attr::SpatialScale, n.float_attr("spatial_scale", 1)},
                        {Attr::AlignCorners, int64_t{coordinates == "output_half_pixel"}}}));
}

// ---- the middle of x, cut out or put into zeros ----

Status lower_center_crop_pad(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const Item& x = n.in(0);
  WEFT_TRY(const Ints sizes, n.ints(1, "shape"));
  Ints axes = n.ints_attr("axes");
  if (!n.has_attr("axes"))
    for (int64_t d = 0; d < x.rank(); ++d) axes.push_back(d);
  if (sizes.size() != axes.size())
    return n.invalid("its shape " + to_string(sizes) + " is not that of its axes");
  Ints pads(2 * x.shape().size(), 0);
  std::vector<bool> seen(x.shape().size());
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = dag::normalise_axis(axes[i], x.rank());
    if (!axis) return n.invalid(axis.error().message);
    const auto d = static_cast<size_t>(*axis);
    if (seen[d]) return n.invalid("an axis is given twice");
    seen[d] = true;
    if (sizes[i] < 0 || sizes[i] > dag::kElementCountMax)
      return n.invalid("its shape is " + to_string(sizes));
    // The odd one is cut, or added, at the end.
    const int64_t more = sizes[i] - x.shape()[d];
    pads[d] = more / 2;
    pads[x.shape().size() + d] = more - more / 2;
  }
  if (pads == Ints(pads.size(), 0)) return n.give(x);
  return n.give(n.emit(OpKind::Pad, {x}, {{Attr::Pads, pads}, {Attr::Mode, "constant"}, {Attr::Value, 0.0}}));
}

constexpr LowerRow kSamplingRows[] = {
    {"Resize", lower_resize, operands(0), operands(1, 2, 3)},
    {"Upsample", lower_upsample, operands(0), operands(1)},
    {"GridSample", lower_grid_sample, operands(0, 1)},
    {"AffineGrid", lower_affine_grid, operands(0), operands(1)},
    {"RoiAlign", lower_roi_align, operands(0)},
    {"CenterCropPad", lower_center_crop_pad, operands(0), operands(1)},
};

}  // namespace

std::span<const LowerRow> sampling_lowerings() { return kSamplingRows; }

}  // namespace weft::onnx
