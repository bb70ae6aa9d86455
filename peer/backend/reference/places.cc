#include "peer/backend/reference/places.h"

#include <algorithm>
#include <cmath>

namespace weft::peer::reference {
namespace {

using dag::Attr;

// One dim's share in a sample: an element, its weight, and how the weight grows with the place.
struct Tap {
  int64_t index;
  double weight, slope;
};
struct Taps {
  std::array<Tap, 4> taps;
  size_t count = 0;
  void add(int64_t index, int64_t size, double weight, double slope) {
    if (index >= 0 && index < size) taps[count++] = {index, weight, slope};
  }
};

// A place along one dim, in elements, and how it moves with the coordinate that gave it.
struct Place {
  double at, slope;
};

// Whether any element is within reach: places far away, and those that are no numbers, have none.
bool reachable(double at, int64_t size) { return at > -3 && at < static_cast<double>(size) + 2; }

Taps linear_taps(const Place& place, int64_t size) {
  Taps taps;
  if (!reachable(place.at, size)) return taps;
  const auto index = static_cast<int64_t>(std::floor(place.at));
  const double ratio = place.at - std::floor(place.at);
  taps.add(index, size, 1 - ratio, -place.slope);
  taps.add(index + 1, size, ratio, place.slope);
  return taps;
}

// ---- GridSample ----

Place unpadded(double coordinate, int64_t size, bool align_corners) {
  const auto n = static_cast<double>(size);
  if (align_corners) return {(coordinate + 1) / 2 * (n - 1), (n - 1) / 2};
  return {((coordinate + 1) * n - 1) / 2, n / 2};
}

// Back and forth between the plane's ends: the middle of the outermost elements, or their outer edges.
Place reflected(Place place, int64_t size, bool align_corners) {
  const double low = align_corners ? 0 : -0.5, span = static_cast<double>(align_corners ? size - 1 : size);
  if (span <= 0) return {0, 0};
  const double distance = std::abs(place.at - low), rest = std::fmod(distance, span);
  const bool turned = std::fmod(std::floor(distance / span), 2) != 0;
  const double direction = (place.at < low ? -1 : 1) * (turned ? -1 : 1);
  return {turned ? low + span - rest : low + rest, place.slope * direction};
}

Place clipped(Place place, int64_t size) {
  const auto last = static_cast<double>(size - 1);
  if (place.at <= 0) return {0, 0};
  if (place.at >= last) return {last, 0};
  return place;
}

Place padded(Place place, int64_t size, const GridRule& rule) {
  if (rule.padding == GridRule::Padding::Zeros) return place;
  if (rule.padding == GridRule::Padding::Reflection) place = reflected(place, size, rule.align_corners);
  return clipped(place, size);
}

// The cubic's weight at a distance, and its slope, with PyTorch's a = -0.75.
constexpr double kCubic = -0.75;
double cubic_at(double d) {
  if (d <= 1) return ((kCubic + 2) * d - (kCubic + 3)) * d * d + 1;
  return ((kCubic * d - 5 * kCubic) * d + 8 * kCubic) * d - 4 * kCubic;
}
double cubic_slope_at(double d) {
  if (d <= 1) return (3 * (kCubic + 2) * d - 2 * (kCubic + 3)) * d;
  return (3 * kCubic * d - 10 * kCubic) * d + 8 * kCubic;
}

// Not the place is padded but each of the four elements, as PyTorch does.
Taps cubic_taps(const Place& place, int64_t size, const GridRule& rule) {
  Taps taps;
  const double first = std::floor(place.at);
  if (!(std::abs(first) < 1e15)) return taps;
  for (int k = -1; k <= 2; ++k) {
    const double distance = place.at - (first + k);  // positive: the element lies before the place
    const double sign = distance < 0 ? -1 : 1;
    const Place element = padded({first + k, 1}, size, rule);
    if (!reachable(element.at, size)) continue;
    taps.add(static_cast<int64_t>(std::nearbyint(element.at)), size, cubic_at(std::abs(distance)),
             cubic_slope_at(std::abs(distance)) * sign * place.slope);
  }
  return taps;
}

template <typename T>
double nearest_element(T coordinate, T size, bool align_corners) {
  if (align_corners) return static_cast<double>(std::nearbyint((coordinate + 1) / 2 * (size - 1)));
  return static_cast<double>(std::nearbyint(((coordinate + 1) * size - 1) / 2));
}

// As ONNX has it: a half goes to the even element, and what is padded is the element. Whether a place is a
// half is a matter of rounding, so that it is worked out in the grid's own type.
Taps nearest_taps(const GridRule& rule, double coordinate, int64_t size) {
  const double element =
      rule.is_single
          ? nearest_element(static_cast<float>(coordinate), static_cast<float>(size), rule.align_corners)
          : nearest_element(coordinate, static_cast<double>(size), rule.align_corners);
  const double at = padded({element, 0}, size, rule).at;
  Taps taps;
  if (reachable(at, size)) taps.add(static_cast<int64_t>(std::nearbyint(at)), size, 1, 0);
  return taps;
}

Taps grid_taps(const GridRule& rule, double coordinate, int64_t size) {
  const Place place = unpadded(coordinate, size, rule.align_corners);
  switch (rule.mode) {
    case GridRule::Mode::Nearest:
      return nearest_taps(rule, coordinate, size);
    case GridRule::Mode::Linear:
      return linear_taps(padded(place, size, rule), size);
    case GridRule::Mode::Cubic:
      return cubic_taps(place, size, rule);
  }
  return {};
}

void append(Samples& samples, int64_t from, double weight, double slope0, double slope1, double slope2) {
  samples.from.push_back(from);
  samples.weights.push_back(weight);
  samples.slopes[0].push_back(slope0);
  samples.slopes[1].push_back(slope1);
  samples.slopes[2].push_back(slope2);
}
void finish(Samples& samples) { samples.starts.push_back(static_cast<int64_t>(samples.from.size())); }

}  // namespace

PlaneDims plane_dims(const dag::Shape& x) {
  const size_t rank = x.size();
  return {{rank > 4 ? x[rank - 3] : 1, x[rank - 2], x[rank - 1]}};
}

void Samples::clear() {
  starts.assign(1, 0);
  from.clear();
  weights.clear();
  for (auto& slope : slopes) slope.clear();
}

GridRule grid_rule(const dag::Attributes& attributes, const dag::TensorSpec& spec) {
  const dag::Shape& x = spec.shape;
  const std::string &mode = attributes.get_string(Attr::Mode),
                    &padding = attributes.get_string(Attr::PaddingMode);
  return {.mode = mode == "nearest"  ? GridRule::Mode::Nearest
                  : mode == "linear" ? GridRule::Mode::Linear
                                     : GridRule::Mode::Cubic,
          .padding = padding == "zeros"    ? GridRule::Padding::Zeros
                     : padding == "border" ? GridRule::Padding::Border
                                           : GridRule::Padding::Reflection,
          .align_corners = attributes.get_int(Attr::AlignCorners) != 0,
          .dims = x.size() - 2,
          .is_single = spec.dtype == dag::DType::F32};
}

void add_grid_samples(const GridRule& rule, const PlaneDims& plane, std::span<const double> grid,
                      Samples& samples) {
  Taps whole;
  whole.add(0, 1, 1, 0);
  const auto [depth, height, width] = plane.size;
  for (size_t i = 0; i < grid.size(); i += rule.dims) {
    const Taps along_x = grid_taps(rule, grid[i], width), along_y = grid_taps(rule, grid[i + 1], height);
    const Taps along_z = rule.dims == 3 ? grid_taps(rule, grid[i + 2], depth) : whole;
    for (size_t a = 0; a < along_z.count; ++a)
      for (size_t b = 0; b < along_y.count; ++b)
        for (size_t c = 0; c < along_x.count; ++c) {
          const Tap &z = along_z.taps[a], &y = along_y.taps[b], &x = along_x.taps[c];
          append(samples, (z.index * height + y.index) * width + x.index, z.weight * y.weight * x.weight,
                 z.weight * y.weight * x.slope, z.weight * y.slope * x.weight, z.slope * y.weight * x.weight);
        }
    finish(samples);
  }
}

// ---- RoiAlign ----

RoiRule roi_rule(const dag::Attributes& attributes) {
  const auto& sizes = attributes.get_ints(Attr::Sizes);
  return {.height = sizes[0],
          .width = sizes[1],
          .sampling_ratio = attributes.get_int(Attr::SamplingRatio),
          .scale = attributes.get_double(Attr::SpatialScale, 1),
          .align_corners = attributes.get_int(Attr::AlignCorners) != 0};
}

namespace {

// The samples of one bin along one dim: of `total`, those that lie on the map.
struct Line {
  std::vector<Taps> samples;
  double total = 0;
};

Line roi_line(const RoiRule& rule, double low, double high, int64_t bins, int64_t bin, int64_t size) {
  const double shift = rule.align_corners ? 0 : 0.5;
  const double start = low * rule.scale - shift;
  double length = high * rule.scale - shift - start;
  if (rule.align_corners) length = std::max(length, 1.0);  // a malformed region is one pixel
  const double width = length / static_cast<double>(bins);
  Line line;
  line.total = rule.sampling_ratio > 0 ? static_cast<double>(rule.sampling_ratio) : std::ceil(width);
  if (!(line.total >= 1) || !(std::abs(start) < 1e15) || !(line.total < 1e15)) return line;
  const double step = width / line.total, first = start + static_cast<double>(bin) * width + step / 2;
  const auto end = static_cast<double>(size);
  // A region far larger than the map has far more samples than the map has room for.
  const double skipped = step > 0 ? std::clamp(std::floor((-1 - first) / step) - 1, 0.0, line.total) : 0;
  // Whole numbers, and far below 2^53.
  for (double i = skipped; i < line.total; ++i) {  // NOLINT(bugprone-float-loop-counter)
    const double place = first + i * step;
    if (step > 0 && place > end) break;
    if (place < -1 || place > end) continue;
    line.samples.push_back(linear_taps({std::clamp(place, 0.0, end - 1), 1}, size));
  }
  return line;
}

}  // namespace

void set_roi_bin(const RoiRule& rule, const PlaneDims& plane, std::span<const double> region, int64_t h,
                 int64_t w, RoiBin& bin) {
  const Line rows = roi_line(rule, region[1], region[3], rule.height, h, plane.size[1]);
  const Line columns = roi_line(rule, region[0], region[2], rule.width, w, plane.size[2]);
  bin.samples.clear();
  bin.total = rows.total * columns.total;
  for (const Taps& row : rows.samples)
    for (const Taps& column : columns.samples) {
      for (size_t a = 0; a < row.count; ++a)
        for (size_t b = 0; b < column.count; ++b)
          append(bin.samples, row.taps[a].index * plane.size[2] + column.taps[b].index,
                 row.taps[a].weight * column.taps[b].weight, 0, 0, 0);
      finish(bin.samples);
    }
}

// ---- DeformColumns ----

void add_linear_sample(const PlaneDims& plane, double y, double x, Samples& samples) {
  const Taps rows = linear_taps({y, 1}, plane.size[1]), columns = linear_taps({x, 1}, plane.size[2]);
  for (size_t a = 0; a < rows.count; ++a)
    for (size_t b = 0; b < columns.count; ++b) {
      const Tap &row = rows.taps[a], &column = columns.taps[b];
      append(samples, row.index * plane.size[2] + column.index, row.weight * column.weight,
             row.slope * column.weight, row.weight * column.slope, 0);
    }
  finish(samples);
}

}  // namespace weft::peer::reference
