// Cases of the ops that read between elements, and of determinants. Places keep away from whole numbers,
// where the slope jumps.
#include "tests/dag/op_case_maker.h"

namespace weft::dag {
namespace {

void add_resample_cases(OpCaseMaker& make) {
  struct Variant {
    const char* name;
    Shape x;
    int64_t axis, out, taps;
    bool outside;  // some indices are nowhere
  };
  const Variant variants[] = {
      {"last axis", {2, 3, 5}, 2, 7, 2, false},     {"rows", {2, 5, 6}, 1, 4, 2, false},
      {"first axis", {3, 4}, 0, 5, 1, false},       {"one tap", {2, 2, 4, 3}, 3, 6, 1, false},
      {"four taps", {2, 5, 4}, 2, 3, 4, true},      {"many taps", {1, 9, 3}, 1, 2, 6, true},
      {"outside", {2, 3, 4}, 2, 5, 3, true},        {"no taps", {2, 3}, 1, 2, 0, false},
      {"long rows", {2, 3, 4, 33}, 2, 8, 4, false},
  };
  for (const auto& [name, x, axis, out, taps, outside] : variants) {
    const int64_t size = x[static_cast<size_t>(axis)], beyond = outside ? 2 : 0;
    const Tensor indices = make.whole({out, taps}, -beyond, size - 1 + beyond);
    const Tensor weights = make.real({out, taps});
    make.add(OpKind::Resample, name, {make.real(x), indices, weights}, {{Attr::Axis, axis}}).no_gradient = {
        2};
    Shape y = x;
    y[static_cast<size_t>(axis)] = out;
    make.add(OpKind::ResampleGrad, name, {make.real(y), indices, weights},
             {{Attr::Axis, axis}, {Attr::Shape, x}})
        .no_gradient = {2};
  }
}

// Places on and around `size` elements, away from whole numbers and from the halves between them.
std::vector<double> places(OpCaseMaker& make, int64_t count, int64_t size) {
  const Tensor whole = make.whole({count}, -2, size), part = make.real({count}, 0.1, 0.4);
  const Tensor upper = make.boolean({count});
  auto values = to_doubles(whole);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] += to_doubles(part)[i] + 0.5 * static_cast<double>(to_int64s(upper)[i]);
  return values;
}

Tensor grid_over(OpCaseMaker& make, const Shape& x, Shape points, bool align_corners) {
  const size_t dims = points.size() - 1;
  points.push_back(static_cast<int64_t>(dims));
  const TensorSpec spec{DType::F32, points};
  std::vector<double> grid(static_cast<size_t>(spec.element_count()));
  for (size_t d = 0; d < dims; ++d) {
    const int64_t size = x[x.size() - 1 - d];
    const auto along = places(make, spec.element_count() / static_cast<int64_t>(dims), size);
    for (size_t i = 0; i < along.size(); ++i)
      grid[i * dims + d] = align_corners ? 2 * along[i] / static_cast<double>(size - 1) - 1
                                         : (2 * along[i] + 1) / static_cast<double>(size) - 1;
  }
  return from_doubles(spec, grid);
}

void add_grid_cases(OpCaseMaker& make) {
  const auto add = [&](const Shape& x, const Shape& points, const char* mode, const char* padding,
                       int64_t corners) {
    const Attributes attributes{{Attr::Mode, std::string(mode)},
                                {Attr::PaddingMode, std::string(padding)},
                                {Attr::AlignCorners, corners}};
    const std::string name = std::string(mode) + " " + padding + (corners ? " corners " : " ") +
                             std::to_string(points.size() - 1) + "d";
    const Tensor image = make.real(x), grid = grid_over(make, x, points, corners != 0);
    Shape y{x[0], x[1]};
    y.insert(y.end(), points.begin() + 1, points.end());
    make.add(OpKind::GridSample, name, {image, grid}, attributes);
    make.add(OpKind::GridSampleGrad, name, {make.real(y), image, grid}, attributes);
  };
  for (const char* padding : {"zeros", "border", "reflection"})
    for (const int64_t corners : {0, 1}) {
      for (const char* mode : {"linear", "nearest", "cubic"})
        add({2, 3, 4, 5}, {2, 3, 4}, mode, padding, corners);
      for (const char* mode : {"linear", "nearest"})
        add({1, 2, 3, 4, 2}, {1, 2, 3, 2}, mode, padding, corners);
    }
}

void add_roi_cases(OpCaseMaker& make) {
  const Shape x{2, 3, 6, 7};
  // The third leaves the map, the fourth is upside down, the last is of an image that is not there.
  const Tensor rois = make.floats(
      {5, 4}, {0.3, 0.6, 4.2, 5.1, 1.1, 0.4, 6.3, 3.2, 3.3, 2.7, 11.2, 9.1, 4.4, 4.6, 2.1, 1.2, 1, 1, 3, 3});
  const Tensor indices = from_int64s({DType::I64, {5}}, std::vector<int64_t>{0, 1, 1, 0, 7});
  for (const char* mode : {"avg", "max"})
    for (const int64_t ratio : {0, 2})
      for (const int64_t corners : {0, 1}) {
        const Attributes attributes{{Attr::Mode, std::string(mode)},
                                    {Attr::Sizes, Ints{2, 3}},
                                    {Attr::SamplingRatio, ratio},
                                    {Attr::SpatialScale, 0.9},
                                    {Attr::AlignCorners, corners}};
        const std::string name =
            std::string(mode) + (ratio ? " fixed" : " adaptive") + (corners ? " corners" : "");
        const Tensor map = make.apart(x);
        make.add(OpKind::RoiAlign, name, {map, rois, indices}, attributes).no_gradient = {1};
        make.add(OpKind::RoiAlignGrad, name, {make.real({5, 3, 2, 3}), map, rois, indices}, attributes);
      }
}

void add_deform_cases(OpCaseMaker& make) {
  struct Variant {
    const char* name;
    Shape x;
    int64_t groups, rows, columns;
    Ints kernel, strides, dilations, pads;
    bool mask;
  };
  const Variant variants[] = {
      {"3x3", {2, 2, 5, 6}, 1, 5, 6, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, true},
      {"no mask", {1, 3, 4, 5}, 1, 3, 4, {2, 2}, {1, 1}, {1, 1}, {0, 0, 0, 0}, false},
      {"groups", {1, 4, 5, 5}, 2, 2, 3, {2, 3}, {2, 2}, {2, 1}, {0, 1, 1, 1}, true},
  };
  for (const auto& [name, x, groups, rows, columns, kernel, strides, dilations, pads, mask] : variants) {
    const int64_t taps = kernel[0] * kernel[1];
    const Attributes attributes{{Attr::Kernel, kernel},
                                {Attr::Strides, strides},
                                {Attr::Dilations, dilations},
                                {Attr::Pads, pads},
                                {Attr::OffsetGroups, groups}};
    const Shape shape{x[0], groups * 2 * taps, rows, columns};
    const TensorSpec spec{DType::F32, shape};
    Operands operands{make.real(x), from_doubles(spec, places(make, spec.element_count(), 1))};
    if (mask) operands.push_back(make.real({x[0], groups * taps, rows, columns}));
    make.add(OpKind::DeformColumns, name, operands, attributes);
    operands.insert(operands.begin(), make.real({x[0], x[1] * taps, rows * columns}));
    make.add(OpKind::DeformColumnsGrad, name, operands, attributes);
  }
}

void add_determinant_cases(OpCaseMaker& make) {
  const Tensor singular = make.floats({2, 3, 3}, {1, 2, 3, 2, 4, 6, 1, 0, 1, 1, 2, 3, 2, 4, 6, -1, -2, -3});
  struct Variant {
    const char* name;
    Tensor matrix;
  };
  for (const auto& [name, matrix] :
       {Variant{"1x1", make.real({1, 1})}, Variant{"2x2", make.real({3, 2, 2})},
        Variant{"4x4", make.real({2, 1, 4, 4})}, Variant{"singular", singular}}) {
    make.add(OpKind::Det, name, {matrix});
    make.add(OpKind::DetGrad, name, {make.real({matrix.shape().begin(), matrix.shape().end() - 2}), matrix});
  }
}

}  // namespace

void add_sampling_cases(OpCaseMaker& make) {
  add_determinant_cases(make);
  add_resample_cases(make);
  add_grid_cases(make);
  add_roi_cases(make);
  add_deform_cases(make);
}

}  // namespace weft::dag
