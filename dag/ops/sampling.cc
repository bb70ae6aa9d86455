// Ops whose results stand at places between the elements of their operand, or at any of them: each result is
// a weighted sum of a few.
#include <cmath>

#include "dag/ops/windows.h"

namespace weft::dag {
namespace {

using namespace ops;

// ---- along one axis ----

// indices I64 [out, taps] and weights of x's dtype, in operands 1 and 2: the row of sums they describe.
Result<int64_t> resampled_size(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 3));
  WEFT_TRY_STATUS(need_float(c, 0));
  WEFT_TRY_STATUS(need_same_dtype(c, 0, 2));
  if (c.in(1).dtype != DType::I64 || c.in(1).rank() != 2) return refuse_operand(c, 1, "i64[out,taps]");
  WEFT_TRY_STATUS(need_spec(c, 2, c.in(0).dtype, c.in(1).shape));
  return c.in(1).shape[0];
}

Specs infer_resample(const ShapeContext& c) {
  WEFT_TRY(const int64_t size, resampled_size(c));
  WEFT_TRY(const size_t axis, axis_of(c, c.in(0).rank()));
  Shape shape = c.in(0).shape;
  shape[axis] = size;
  return one(c.in(0).dtype, std::move(shape));
}

Specs infer_resample_grad(const ShapeContext& c) {
  WEFT_TRY(const int64_t size, resampled_size(c));
  WEFT_TRY(TensorSpec x, spec_of_attribute(c, c.in(0).dtype));
  WEFT_TRY(const size_t axis, axis_of(c, x.rank()));
  Shape shape = x.shape;
  shape[axis] = size;
  WEFT_TRY_STATUS(need_spec(c, 0, x.dtype, shape));
  return std::vector<TensorSpec>{std::move(x)};
}

FlopCount resample_flops(const ShapeContext& c, std::span<const TensorSpec> outputs) {
  const int64_t elements = std::max(c.in(0).element_count(), outputs[0].element_count());
  return saturating_product({2, elements, c.in(1).shape[1]});
}

void resample_vjp(VjpContext& c) {
  const Attributes attributes{{Attr::Axis, c.attributes().get_int(Attr::Axis)},
                              {Attr::Shape, c.spec(c.in(0)).shape}};
  c.set(0, c.add(OpKind::ResampleGrad, {c.cotangent(), c.in(1), c.in(2)}, attributes));
}
void resample_grad_vjp(VjpContext& c) {
  const Attributes attributes{{Attr::Axis, c.attributes().get_int(Attr::Axis)}};
  c.set(0, c.add(OpKind::Resample, {c.cotangent(), c.in(1), c.in(2)}, attributes));
}

void add_resampling(OpTable& table) {
  table.add({.kind = OpKind::Resample,
             .family = Family::Sampling,
             .inputs_min = 3,
             .inputs_max = 3,
             .differentiability = Differentiability::Differentiable,
             .infer = infer_resample,
             .vjp = resample_vjp,
             .flops = resample_flops,
             .about = "x, indices I64[out,taps], weights[out,taps] -> element o along axis is the sum over t "
                      "of weights[o,t] * x's element indices[o,t]; an index outside contributes nothing; no "
                      "cotangent to weights"});
  table.add({.kind = OpKind::ResampleGrad,
             .family = Family::Sampling,
             .inputs_min = 3,
             .inputs_max = 3,
             .differentiability = Differentiability::Differentiable,
             .infer = infer_resample_grad,
             .vjp = resample_grad_vjp,
             .flops = resample_flops,
             .about = "dy, indices, weights -> dx of Resample: each dy added by weight at its indices, in "
                      "order of o and t; axis; shape: x's"});
}

// ---- at the points of a grid ----

Status need_one_of(const ShapeContext& c, Attr name, std::initializer_list<std::string_view> values) {
  const std::string& value = c.attributes.get_string(name);
  std::string list;
  for (const std::string_view known : values) {
    if (value == known) return {};
    list += (list.empty() ? "" : ", ") + std::string(known);
  }
  return refuse("attribute " + std::string(to_string(name)) + " is '" + value + "', want one of " + list);
}

// Operand i is [N, C, ...] with `low` to `high` spatial dims, none of them empty.
Status need_planes(const ShapeContext& c, size_t i, int64_t low, int64_t high) {
  const Shape& x = c.in(i).shape;
  WEFT_TRY_STATUS(need_float(c, i));
  bool fits = c.in(i).rank() >= low + 2 && c.in(i).rank() <= high + 2;
  for (size_t d = 2; fits && d < x.size(); ++d) fits = x[d] > 0;
  if (fits) return {};
  return refuse_operand(
      c, i,
      "[N, C, " + std::to_string(low) + " to " + std::to_string(high) + " spatial dims that are not empty]");
}

// The result's shape over x and grid, which are operands i and i + 1.
Result<Shape> sampled_shape(const ShapeContext& c, size_t i) {
  WEFT_TRY_STATUS(need_planes(c, i, 2, 3));
  WEFT_TRY_STATUS(need_same_dtype(c, i, i + 1));
  const Shape &x = c.in(i).shape, &grid = c.in(i + 1).shape;
  if (grid.size() != x.size() || grid[0] != x[0] || grid.back() != c.in(i).rank() - 2)
    return refuse_operand(c, i + 1, "[N, spatial..., a coordinate for each spatial dim of x]");
  WEFT_TRY_STATUS(int_in(c, Attr::AlignCorners, 0, 1));
  WEFT_TRY_STATUS(need_one_of(c, Attr::PaddingMode, {"zeros", "border", "reflection"}));
  WEFT_TRY_STATUS(need_one_of(c, Attr::Mode, {"linear", "nearest", "cubic"}));
  if (x.size() > 4 && c.attributes.get_string(Attr::Mode) == "cubic")
    return refuse("mode cubic is for two spatial dims");
  Shape y{x[0], x[1]};
  y.insert(y.end(), grid.begin() + 1, grid.end() - 1);
  return y;
}

Specs infer_grid_sample(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY(Shape y, sampled_shape(c, 0));
  return one(c.in(0).dtype, std::move(y));
}
Specs infer_grid_sample_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 3));
  WEFT_TRY(const Shape y, sampled_shape(c, 1));
  WEFT_TRY_STATUS(need_spec(c, 0, c.in(1).dtype, y));
  return std::vector<TensorSpec>{c.in(1), c.in(2)};
}

FlopCount grid_flops(const TensorSpec& y, const Attributes& attributes) {
  const std::string& mode = attributes.get_string(Attr::Mode);
  return saturating_product({y.element_count(), mode == "nearest" ? 2 : mode == "cubic" ? 32 : 16});
}

void grid_sample_vjp(VjpContext& c) {
  const auto grads =
      c.builder().add_all(OpKind::GridSampleGrad, {c.cotangent(), c.in(0), c.in(1)}, c.attributes());
  c.set(0, grads[0]);
  c.set(1, grads[1]);
}

void add_grids(OpTable& table) {
  table.add(
      {.kind = OpKind::GridSample,
       .family = Family::Sampling,
       .inputs_min = 2,
       .inputs_max = 2,
       .differentiability = Differentiability::Differentiable,
       .infer = infer_grid_sample,
       .vjp = grid_sample_vjp,
       .flops = [](const ShapeContext& c,
                   std::span<const TensorSpec> outputs) { return grid_flops(outputs[0], c.attributes); },
       .about = "x[N,C,h,w] or [N,C,d,h,w], grid[N,spatial..,2 or 3] (x first, -1 to 1 over the plane) "
                "-> x at the grid's points; mode: linear, nearest, cubic (two dims); padding_mode: "
                "zeros, border, reflection; align_corners; a point that is no number reads nothing"});
  table.add({.kind = OpKind::GridSampleGrad,
             .family = Family::Sampling,
             .inputs_min = 3,
             .inputs_max = 3,
             .differentiability = Differentiability::Refused,
             .infer = infer_grid_sample_grad,
             .flops = [](const ShapeContext& c,
                         std::span<const TensorSpec>) { return grid_flops(c.in(0), c.attributes); },
             .about = "dy, x, grid -> dx, dgrid; attributes of GridSample"});
}

// ---- in regions ----

// The result's shape over x, rois and batch_indices, which are operands i to i + 2.
Result<Shape> aligned_shape(const ShapeContext& c, size_t i) {
  WEFT_TRY_STATUS(need_planes(c, i, 2, 2));
  WEFT_TRY_STATUS(need_same_dtype(c, i, i + 1));
  WEFT_TRY_STATUS(need_index(c, i + 2));
  const Shape &rois = c.in(i + 1).shape, &indices = c.in(i + 2).shape;
  if (rois.size() != 2 || rois[1] != 4) return refuse_operand(c, i + 1, "[regions,4]");
  if (indices != Shape{rois[0]}) return refuse_operand(c, i + 2, "an index a region");
  WEFT_TRY_STATUS(need_ints(c, Attr::Sizes, 2, 1, int64_t{1} << 20));
  WEFT_TRY_STATUS(int_in(c, Attr::SamplingRatio, 0, 64));
  WEFT_TRY_STATUS(int_in(c, Attr::AlignCorners, 0, 1));
  WEFT_TRY_STATUS(need_one_of(c, Attr::Mode, {"avg", "max"}));
  if (!std::isfinite(c.attributes.get_double(Attr::SpatialScale, 1)))
    return refuse("attribute spatial_scale is not finite");
  const Ints& sizes = c.attributes.get_ints(Attr::Sizes);
  return Shape{rois[0], c.in(i).shape[1], sizes[0], sizes[1]};
}

Specs infer_roi_align(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 3));
  WEFT_TRY(Shape y, aligned_shape(c, 0));
  return one(c.in(0).dtype, std::move(y));
}
Specs infer_roi_align_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 4));
  WEFT_TRY(const Shape y, aligned_shape(c, 1));
  WEFT_TRY_STATUS(need_spec(c, 0, c.in(1).dtype, y));
  return std::vector<TensorSpec>{c.in(1)};
}

// Regions decide at run time how many samples a bin has: at most so many that the map is full.
FlopCount roi_flops(const TensorSpec& x, const TensorSpec& y, const Attributes& attributes) {
  const int64_t ratio = attributes.get_int(Attr::SamplingRatio);
  const int64_t bins = y.shape[0] * y.shape[1];
  if (ratio > 0) return saturating_product({y.element_count(), 8, ratio, ratio});
  const FlopCount map = saturating_product({bins, 8, x.shape[2], x.shape[3]});
  const FlopCount single = saturating_product({y.element_count(), 8});
  return map.value > single.value ? map : single;
}

void roi_align_vjp(VjpContext& c) {
  c.set(0, c.add(OpKind::RoiAlignGrad, {c.cotangent(), c.in(0), c.in(1), c.in(2)}, c.attributes()));
}

void add_regions(OpTable& table) {
  table.add({.kind = OpKind::RoiAlign,
             .family = Family::Sampling,
             .inputs_min = 3,
             .inputs_max = 3,
             .differentiability = Differentiability::Differentiable,
             .infer = infer_roi_align,
             .vjp = roi_align_vjp,
             .flops =
                 [](const ShapeContext& c, std::span<const TensorSpec> outputs) {
                   return roi_flops(c.in(0), outputs[0], c.attributes);
                 },
             .about =
                 "x[N,C,h,w], rois[R,4] (x1,y1,x2,y2), batch_indices[R] -> [R,C,sizes]: mean (mode avg) of "
                 "linear samples in each bin, or the largest of their weighted elements (max); "
                 "sampling_ratio, spatial_scale; align_corners 0: regions are moved by half a pixel, 1: "
                 "they are not, and are a pixel wide at least; an index outside reads nothing; no "
                 "cotangent to rois"});
  table.add({.kind = OpKind::RoiAlignGrad,
             .family = Family::Sampling,
             .inputs_min = 4,
             .inputs_max = 4,
             .differentiability = Differentiability::Refused,
             .infer = infer_roi_align_grad,
             .flops = [](const ShapeContext& c,
                         std::span<const TensorSpec>) { return roi_flops(c.in(1), c.in(0), c.attributes); },
             .about = "dy, x, rois, batch_indices -> dx; attributes of RoiAlign"});
}

// ---- under the taps of a deformed window ----

// [N, C*taps, windows] over x, offset and mask, which are operands i to i + 2.
Result<Shape> columns_shape(const ShapeContext& c, size_t i) {
  WEFT_TRY_STATUS(need_planes(c, i, 2, 2));
  const Shape& x = c.in(i).shape;
  WEFT_TRY_STATUS(need_ints(c, Attr::Kernel, 2, 1, int64_t{1} << 10));
  WEFT_TRY_STATUS(need_window_attributes(c, 2));
  WEFT_TRY(const int64_t groups, int_in(c, Attr::OffsetGroups, 1, kElementCountMax));
  if (x[1] % groups != 0) return refuse("channels are no multiple of attribute offset_groups");
  const Ints& kernel = c.attributes.get_ints(Attr::Kernel);
  WEFT_TRY(const int64_t rows, window_count(c.attributes, 0, x[2], kernel[0], false));
  WEFT_TRY(const int64_t columns, window_count(c.attributes, 1, x[3], kernel[1], false));
  const int64_t taps = kernel[0] * kernel[1];
  if (groups > kElementCountMax / (2 * taps)) return refuse("attribute offset_groups is too large");
  WEFT_TRY_STATUS(need_spec(c, i + 1, c.in(i).dtype, {x[0], groups * 2 * taps, rows, columns}));
  WEFT_TRY_STATUS(need_spec(c, i + 2, c.in(i).dtype, {x[0], groups * taps, rows, columns}));
  if (x[1] > kElementCountMax / taps || rows > kElementCountMax / columns)
    return fail(ErrorCode::OutOfRange, "the result is too large");
  return Shape{x[0], x[1] * taps, rows * columns};
}

Specs infer_deform_columns(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY(Shape columns, columns_shape(c, 0));
  return one(c.in(0).dtype, std::move(columns));
}
Specs infer_deform_columns_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 3));
  WEFT_TRY(Shape columns, columns_shape(c, 1));
  WEFT_TRY_STATUS(need_spec(c, 0, c.in(1).dtype, columns));
  std::vector<TensorSpec> specs{c.in(1), c.in(2)};
  if (c.has(3)) specs.push_back(c.in(3));
  return specs;
}

void deform_columns_vjp(VjpContext& c) {
  std::vector<ValueId> operands{c.cotangent(), c.in(0), c.in(1)};
  if (c.has_in(2)) operands.push_back(c.in(2));
  const auto grads = c.builder().add_all(OpKind::DeformColumnsGrad, std::move(operands), c.attributes());
  for (size_t i = 0; i < grads.size(); ++i) c.set(i, grads[i]);
}

void add_deformed(OpTable& table) {
  table.add({.kind = OpKind::DeformColumns,
             .family = Family::Sampling,
             .inputs_min = 2,
             .inputs_max = 3,
             .differentiability = Differentiability::Differentiable,
             .infer = infer_deform_columns,
             .vjp = deform_columns_vjp,
             .flops = flops_an_output_element<9>,
             .about =
                 "x[N,C,h,w], offset[N,groups*2*taps,oh,ow] (y, x a tap), mask?[N,groups*taps,oh,ow] -> "
                 "[N,C*taps,oh*ow]: x under each tap, moved by its offset, linear, zero beside the plane, "
                 "times mask; kernel, strides, dilations, pads; offset_groups: of channels that share "
                 "offsets"});
  table.add({.kind = OpKind::DeformColumnsGrad,
             .family = Family::Sampling,
             .inputs_min = 3,
             .inputs_max = 4,
             .differentiability = Differentiability::Refused,
             .infer = infer_deform_columns_grad,
             .flops =
                 [](const ShapeContext& c, std::span<const TensorSpec>) {
                   return saturating_product({27, c.in(0).element_count()});
                 },
             .about = "dy, x, offset, mask? -> dx, doffset, dmask (where there is a mask); attributes of "
                      "DeformColumns"});
}

}  // namespace

void add_sampling_ops(OpTable& table) {
  add_resampling(table);
  add_grids(table);
  add_regions(table);
  add_deformed(table);
}

}  // namespace weft::dag
