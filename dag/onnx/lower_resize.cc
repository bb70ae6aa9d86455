// Resize and Upsample: along each axis a weighted sum of a few elements, chosen here.
#include <cmath>

#include "dag/onnx/lowering.h"

namespace weft::onnx {
namespace {

struct ResizeModes {
  std::string mode = "nearest", coordinates = "half_pixel", nearest = "round_prefer_floor";
  double cubic = -0.75;  // its coefficient a
  double extrapolation = 0;
  bool antialias = false, exclude_outside = false;
};

struct ResizedAxis {
  int64_t axis = 0, in = 0, out = 0;
  double length = 0;          // of the result before it was rounded to `out`
  double begin = 0, end = 1;  // the part of x that is read, of tf_crop_and_resize
};

// Where element `o` of the result lies between x's elements.
double place_of(const ResizedAxis& a, const std::string& mode, int64_t o) {
  const auto in = static_cast<double>(a.in), out = static_cast<double>(a.out), i = static_cast<double>(o);
  const double half_pixel = (i + 0.5) * in / a.length - 0.5;
  if (mode == "align_corners") return a.length == 1 ? 0 : i * (in - 1) / (a.length - 1);
  if (mode == "asymmetric") return i * in / a.length;
  if (mode == "tf_half_pixel_for_nn") return (i + 0.5) * in / a.length;
  if (mode == "pytorch_half_pixel") return a.out > 1 ? half_pixel : 0;
  if (mode == "half_pixel_symmetric") return in / 2 * (1 - out / a.length) + half_pixel;
  if (mode == "tf_crop_and_resize")
    return a.out > 1 ? a.begin * (in - 1) + i * (a.end - a.begin) * (in - 1) / (out - 1)
                     : (a.begin + a.end) * (in - 1) / 2;
  return half_pixel;
}

double nearest_of(double place, const std::string& mode) {
  if (mode == "floor") return std::floor(place);
  if (mode == "ceil") return std::ceil(place);
  return mode == "round_prefer_ceil" ? std::floor(place + 0.5) : std::ceil(place - 0.5);
}

// How much an element counts at a distance from the place, in elements of x, or of the result when that is
// coarser and antialiased.
double kernel_at(double distance, const ResizeModes& modes) {
  const double d = std::abs(distance), a = modes.cubic;
  if (modes.mode == "linear") return std::max(0.0, 1 - d);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

// The elements of x that a result reads, and their weights; index -1 reads nothing.
struct Taps {
  int64_t count = 0;
  std::vector<int64_t> indices;  // [out, count]
  std::vector<double> weights;
  std::vector<bool> outside;  // [out]: where tf_crop_and_resize extrapolates
};

// The weights of elements first .. first + count - 1 of x for a place among them, in `weights`.
void weigh(const ResizedAxis& a, const ResizeModes& modes, double place, double stretch, int64_t first,
           std::span<int64_t> indices, std::span<double> weights) {
  double sum = 0;
  for (size_t t = 0; t < weights.size(); ++t) {
    const int64_t index = first + static_cast<int64_t>(t);
    const bool inside = index >= 0 && index < a.in;
    weights[t] = modes.exclude_outside && !inside
                     ? 0
                     : kernel_at((static_cast<double>(index) - place) * stretch, modes);
    indices[t] = modes.exclude_outside && !inside ? -1 : std::clamp<int64_t>(index, 0, a.in - 1);
    sum += weights[t];
  }
  if (sum == 0 || (!modes.exclude_outside && !modes.antialias)) return;
  for (double& weight : weights) weight /= sum;
}

constexpr int64_t kTapsMost = int64_t{1} << 24;

// nullopt: more taps than anyone means.
std::optional<Taps> taps_of(const ResizedAxis& a, const ResizeModes& modes) {
  const bool nearest = modes.mode == "nearest";
  const double stretch = modes.antialias ? std::min(1.0, a.length / static_cast<double>(a.in)) : 1;
  const double reach = nearest ? 0 : std::ceil((modes.mode == "linear" ? 1 : 2) / stretch);
  if (std::max(1.0, 2 * reach) * static_cast<double>(a.out) > kTapsMost) return std::nullopt;
  Taps taps;
  taps.count = nearest ? 1 : 2 * static_cast<int64_t>(reach);
  const auto total = static_cast<size_t>(a.out * taps.count), each = static_cast<size_t>(taps.count);
  taps.indices.resize(total);
  taps.weights.resize(total, 1.0);
  taps.outside.resize(static_cast<size_t>(a.out));
  const auto last = static_cast<double>(a.in - 1);
  for (size_t o = 0; o < taps.outside.size(); ++o) {
    const double place = place_of(a, modes.coordinates, static_cast<int64_t>(o));
    taps.outside[o] = modes.coordinates == "tf_crop_and_resize" && !(place >= 0 && place <= last);
    const std::span indices(&taps.indices[o * each], each);
    if (taps.outside[o] || !(std::abs(place) < 1e15)) {
      std::fill(indices.begin(), indices.end(), -1);
    } else if (nearest) {
      indices[0] = static_cast<int64_t>(std::clamp(nearest_of(place, modes.nearest), 0.0, last));
    } else {
      const int64_t first = static_cast<int64_t>(std::floor(place)) - taps.count / 2 + 1;
      weigh(a, modes, place, stretch, first, indices, std::span(&taps.weights[o * each], each));
    }
  }
  return taps;
}

// Every result is one element as it stands, each at its own place.
bool copies(const ResizedAxis& a, const Taps& taps) {
  if (a.in != a.out) return false;
  for (int64_t o = 0; o < a.out; ++o)
    for (int64_t t = 0; t < taps.count; ++t) {
      const auto k = static_cast<size_t>(o * taps.count + t);
      const bool reads = taps.indices[k] >= 0 && taps.weights[k] != 0;
      if (reads && (taps.indices[k] != o || taps.weights[k] != 1)) return false;
      if (taps.outside[static_cast<size_t>(o)]) return false;
    }
  return true;
}

Result<Item> resize_axis(NodeContext& n, const Item& x, const ResizedAxis& a, const ResizeModes& modes) {
  const auto taps = taps_of(a, modes);
  if (!taps)
    return n.unsupported("resizing " + std::to_string(a.in) + " elements to " + std::to_string(a.out));
  if (copies(a, *taps)) return x;
  const Shape table{a.out, taps->count};
  WEFT_TRY(Item y, n.emit(OpKind::Resample,
                          {x, n.constant(dag::from_int64s({DType::I64, table}, taps->indices)),
                           n.constant(dag::from_doubles({x.dtype(), table}, taps->weights))},
                          {{Attr::Axis, a.axis}}));
  if (std::find(taps->outside.begin(), taps->outside.end(), true) == taps->outside.end()) return y;
  Shape line(x.shape().size(), 1);
  line[static_cast<size_t>(a.axis)] = a.out;
  const std::vector<int64_t> outside(taps->outside.begin(), taps->outside.end());
  return n.emit(OpKind::Where, {n.constant(dag::from_int64s({DType::Bool, line}, outside)),
                                n.like(y, modes.extrapolation), y});
}

// The axes that shrink first and the others last, so that what lies between is small; of those that grow the
// last one first, whose elements are gathered one by one.
Result<Item> resize(NodeContext& n, std::vector<ResizedAxis> axes, const ResizeModes& modes) {
  std::stable_sort(axes.begin(), axes.end(), [](const ResizedAxis& a, const ResizedAxis& b) {
    const bool shrinks = a.out < a.in, other = b.out < b.in;
    if (shrinks != other) return shrinks;
    return shrinks ? a.axis < b.axis : a.axis > b.axis;
  });
  const DType dtype = n.in(0).dtype();
  const bool wide = dtype == DType::F64 || dtype == DType::I32 || dtype == DType::I64;
  WEFT_TRY(Item x, n.cast(n.in(0), wide ? DType::F64 : DType::F32));
  for (const ResizedAxis& axis : axes) {
    WEFT_TRY(x, resize_axis(n, x, axis, modes));
  }
  return n.cast(x, dtype);
}

// The numbers of an operand that decides shapes.
Result<std::vector<double>> known_numbers(NodeContext& n, size_t i, const char* what) {
  WEFT_TRY_STATUS(n.ints(i, what));
  return to_doubles(*n.in(i).known);
}
bool given(const NodeContext& n, size_t i) { return n.has(i) && n.in(i).spec.element_count() > 0; }

// Axes 0, 1, ... or those of the attribute, of x as it comes.
Result<std::vector<ResizedAxis>> read_axes(NodeContext& n) {
  const Shape& x = n.in(0).shape();
  std::vector<ResizedAxis> axes;
  Ints numbers = n.ints_attr("axes");
  if (!n.has_attr("axes"))
    for (int64_t d = 0; d < n.in(0).rank(); ++d) numbers.push_back(d);
  for (const int64_t number : numbers) {
    const auto axis = dag::normalise_axis(number, n.in(0).rank());
    if (!axis) return n.invalid(axis.error().message);
    const int64_t size = x[static_cast<size_t>(*axis)];
    if (size == 0) return n.invalid("x " + to_string(n.in(0).spec) + " is empty");
    if (std::any_of(axes.begin(), axes.end(), [&](const ResizedAxis& a) { return a.axis == *axis; }))
      return n.invalid("an axis is given twice");
    axes.push_back({.axis = *axis, .in = size, .out = size, .length = static_cast<double>(size)});
  }
  return axes;
}

Status need_count(NodeContext& n, size_t count, size_t want, const char* what) {
  if (count == want) return {};
  return n.invalid(std::string("its ") + what + " has " + std::to_string(count) + " entries, want " +
                   std::to_string(want));
}

Status take_region(NodeContext& n, std::vector<ResizedAxis>& axes) {
  if (!given(n, 1)) return n.invalid("tf_crop_and_resize without a roi");
  WEFT_TRY(const auto roi, known_numbers(n, 1, "roi"));
  WEFT_TRY_STATUS(need_count(n, roi.size(), 2 * axes.size(), "roi"));
  for (size_t i = 0; i < axes.size(); ++i) {
    axes[i].begin = roi[i];
    axes[i].end = roi[axes.size() + i];
  }
  return {};
}

Status take_scales(NodeContext& n, const std::vector<double>& scales, bool region,
                   std::vector<ResizedAxis>& axes) {
  WEFT_TRY_STATUS(need_count(n, scales.size(), axes.size(), "scales"));
  for (size_t i = 0; i < axes.size(); ++i) {
    if (!(scales[i] > 0)) return n.invalid("a scale is " + std::to_string(scales[i]));
    axes[i].length = scales[i] * static_cast<double>(axes[i].in);
    // In float, as ONNX computes the shape: ten elements by 0.7 are seven.
    float size = static_cast<float>(scales[i]) * static_cast<float>(axes[i].in);
    if (region) size *= static_cast<float>(axes[i].end - axes[i].begin);
    if (!(size >= 1 && size < static_cast<float>(dag::kElementCountMax)))
      return n.invalid("a scale of " + std::to_string(scales[i]) + " makes " + std::to_string(axes[i].in) +
                       " elements to none, or to too many");
    axes[i].out = static_cast<int64_t>(std::floor(size));
  }
  return {};
}

Status take_sizes(NodeContext& n, std::vector<ResizedAxis>& axes) {
  WEFT_TRY(const Ints sizes, n.ints(3, "sizes"));
  WEFT_TRY_STATUS(need_count(n, sizes.size(), axes.size(), "sizes"));
  const std::string policy = n.string_attr("keep_aspect_ratio_policy", "stretch");
  if (policy != "stretch" && policy != "not_larger" && policy != "not_smaller")
    return n.invalid("keep_aspect_ratio_policy is '" + policy.substr(0, 32) + "'");
  double scale = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (sizes[i] < 1 || sizes[i] > dag::kElementCountMax)
      return n.invalid("a size is " + std::to_string(sizes[i]));
    axes[i].out = sizes[i];
    axes[i].length = static_cast<double>(sizes[i]);
    const double own = axes[i].length / static_cast<double>(axes[i].in);
    scale = i == 0 ? own : policy == "not_larger" ? std::min(scale, own) : std::max(scale, own);
  }
  if (policy == "stretch") return {};
  for (ResizedAxis& axis : axes) {
    axis.length = scale * static_cast<double>(axis.in);
    axis.out = static_cast<int64_t>(std::min(axis.length + 0.5, static_cast<double>(dag::kElementCountMax)));
    if (axis.out < 1) return n.invalid("a dim of its result would be empty");
  }
  return {};
}

Result<ResizeModes> read_modes(NodeContext& n) {
  constexpr std::string_view kCoordinates[] = {
      "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel",  "align_corners",
      "asymmetric", "tf_crop_and_resize",   "tf_half_pixel_for_nn"};
  constexpr std::string_view kNearest[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};
  constexpr std::string_view kModes[] = {"nearest", "linear", "cubic"};
  ResizeModes modes;
  modes.mode = n.string_attr("mode", "nearest");
  if (n.op_type() == "Resize" && n.opset() >= 11) {
    modes.coordinates = n.string_attr("coordinate_transformation_mode", "half_pixel");
    modes.nearest = n.string_attr("nearest_mode", "round_prefer_floor");
  } else {
    modes.coordinates = "asymmetric";
    modes.nearest = "floor";
  }
  modes.cubic = n.float_attr("cubic_coeff_a", -0.75);
  modes.extrapolation = n.float_attr("extrapolation_value", 0);
  modes.antialias = n.int_attr("antialias", 0) != 0;
  modes.exclude_outside = n.int_attr("exclude_outside", 0) != 0;
  WEFT_TRY_STATUS(n.attribute_status());
  const auto known = [&](std::span<const std::string_view> names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (!known(kModes, modes.mode)) return n.unsupported("mode '" + modes.mode.substr(0, 32) + "'");
  if (!known(kCoordinates, modes.coordinates))
    return n.unsupported("coordinate_transformation_mode '" + modes.coordinates.substr(0, 32) + "'");
  if (!known(kNearest, modes.nearest))
    return n.unsupported("nearest_mode '" + modes.nearest.substr(0, 32) + "'");
  if (modes.antialias && modes.mode == "nearest") return n.invalid("antialias with mode nearest");
  return modes;
}

}  // namespace

Status lower_resize(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  WEFT_TRY(const ResizeModes modes, read_modes(n));
  WEFT_TRY(std::vector<ResizedAxis> axes, read_axes(n));
  const bool first_form = n.op_type() == "Upsample" || n.opset() < 11;
  const bool region = modes.coordinates == "tf_crop_and_resize";
  if (region) WEFT_TRY_STATUS(take_region(n, axes));
  if (first_form && !given(n, 1)) return n.invalid("it has no scales");
  if (!first_form && given(n, 2) == given(n, 3)) return n.invalid("it needs either scales or sizes");
  if (first_form || given(n, 2)) {
    WEFT_TRY(const auto scales, known_numbers(n, first_form ? 1 : 2, "scales"));
    WEFT_TRY_STATUS(take_scales(n, scales, region, axes));
  } else {
    WEFT_TRY_STATUS(take_sizes(n, axes));
  }
  return n.give(resize(n, std::move(axes), modes));
}

// Opset 7 gives the scales as an attribute.
Status lower_upsample(NodeContext& n) {
  if (n.opset() >= 9 || n.has(1)) return lower_resize(n);
  WEFT_TRY_STATUS(n.need(1));
  WEFT_TRY(const ResizeModes modes, read_modes(n));
  WEFT_TRY(std::vector<ResizedAxis> axes, read_axes(n));
  const auto scales = n.floats_attr("scales");
  WEFT_TRY_STATUS(take_scales(n, scales, false, axes));
  return n.give(resize(n, std::move(axes), modes));
}

}  // namespace weft::onnx
