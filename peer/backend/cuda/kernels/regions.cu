#include "peer/backend/cuda/kernels/places.cuh"
#include "peer/backend/cuda/kernels/regions.h"

namespace weft::peer::cuda {
namespace {

// The samples of one bin along one dim: at first + i * step, i from `begin` below `total`.
struct SampleLine {
  double first, step, total, begin;
  double end;    // the map's
  bool has_any;  // false: there are none, but total counts
};
__device__ __forceinline__ SampleLine line_of(const RegionRule& rule, int32_t dim,
                                              const Array<const float>& rois, int64_t region, int32_t bin) {
  const double low = static_cast<double>(rois[4 * region + 1 - dim]);
  const double high = static_cast<double>(rois[4 * region + 3 - dim]);
  const double shift = rule.align_corners != 0 ? 0.0 : 0.5;
  const double start = low * rule.scale - shift;
  double length = high * rule.scale - shift - start;
  if (rule.align_corners != 0 && length < 1.0) length = 1.0;  // a malformed region is one pixel
  const double width = length / static_cast<double>(rule.bins[dim]);
  SampleLine line{0.0, 0.0, 0.0, 0.0, static_cast<double>(rule.size[dim]), false};
  line.total = rule.sampling_ratio > 0 ? static_cast<double>(rule.sampling_ratio) : ceil(width);
  if (!(line.total >= 1.0) || !(fabs(start) < 1e15) || !(line.total < 1e15)) return line;
  line.has_any = true;
  line.step = width / line.total;
  line.first = start + static_cast<double>(bin) * width + line.step / 2.0;
  // A region far larger than the map has far more samples than the map has room for.
  if (line.step > 0.0) {
    const double skipped = floor((-1.0 - line.first) / line.step) - 1.0;
    line.begin = skipped < 0.0 ? 0.0 : skipped > line.total ? line.total : skipped;
  }
  return line;
}

// Calls visit(what the sample reads) for those on the map.
template <typename Visit>
__device__ __forceinline__ void for_each_sample(const SampleLine& line, const Visit& visit) {
  if (!line.has_any) return;
  for (double i = line.begin; i < line.total; i += 1.0) {
    const double place = line.first + i * line.step;
    if (line.step > 0.0 && place > line.end) break;
    if (place < -1.0 || place > line.end) continue;
    const double inside = place < 0.0 ? 0.0 : place > line.end - 1.0 ? line.end - 1.0 : place;
    visit(linear_taps({inside, 1.0}, static_cast<int32_t>(line.end)));
  }
}

// -1: of no image that there is.
__device__ __forceinline__ int64_t image_of(const Indices& indices, int64_t region, int64_t images) {
  const int64_t image = indices.wide.present() ? indices.wide[region] : int64_t{indices.narrow[region]};
  return image >= 0 && image < images ? image : -1;
}

__device__ __forceinline__ float divisor_of(const RegionMeans& p, int64_t region) {
  const float total = p.rows.totals[region] * p.columns.totals[region];
  return total < 1.0f ? 1.0f : total;
}

// Calls visit(element, its weight) for what bin `bin` of the region takes along one dim.
template <typename Visit>
__device__ __forceinline__ void for_each_weight(const RegionTable& table, int64_t bin, int32_t size,
                                                const Visit& visit) {
  const int32_t end = table.ranges[2 * bin + 1];
  for (int32_t i = table.ranges[2 * bin]; i < end; ++i)
    if (const float weight = table.weights[bin * size + i]; weight != 0.0f) visit(i, weight);
}

// A bin of a channel of a region.
struct Bin {
  int64_t region, channel;
  int32_t row, column;
};
__device__ __forceinline__ Bin bin_of(const RegionRule& rule, int64_t channels, int64_t i) {
  Bin bin;
  bin.column = static_cast<int32_t>(i % rule.bins[1]);
  i /= rule.bins[1];
  bin.row = static_cast<int32_t>(i % rule.bins[0]);
  i /= rule.bins[0];
  bin.channel = i % channels;
  bin.region = i / channels;
  return bin;
}

// The largest weighted element that a bin reads; a sample that has none beside the map reads a zero too.
struct Largest {
  double value, weight;
  int32_t place;  // -1: the zero
};
__device__ __forceinline__ Largest largest(const RegionMaxima& p, const Bin& bin, int64_t map) {
  const SampleLine rows = line_of(p.rule, 0, p.rois, bin.region, bin.row);
  const SampleLine columns = line_of(p.rule, 1, p.rois, bin.region, bin.column);
  int64_t row_count = 0, column_count = 0;
  bool whole = true;  // every sample reads four elements
  for_each_sample(rows, [&](const Taps<2>& taps) {
    ++row_count;
    whole = whole && taps.index[0] >= 0 && taps.index[1] >= 0;
  });
  for_each_sample(columns, [&](const Taps<2>& taps) {
    ++column_count;
    whole = whole && taps.index[0] >= 0 && taps.index[1] >= 0;
  });
  const int64_t count = row_count * column_count;
  bool any = count == 0 || !whole || static_cast<double>(count) < rows.total * columns.total;
  Largest most{0.0, 0.0, -1};
  if (count == 0) return most;
  for_each_sample(rows, [&](const Taps<2>& row) {
    for_each_sample(columns, [&](const Taps<2>& column) {
      WEFT_UNROLL
      for (int k = 0; k < 4; ++k) {
        const int a = k / 2, b = k % 2;
        if (row.index[a] < 0 || column.index[b] < 0) continue;
        const int32_t place = row.index[a] * p.rule.size[1] + column.index[b];
        const double weight = static_cast<double>(row.weight[a]) * static_cast<double>(column.weight[b]);
        const double value = weight * static_cast<double>(p.x[map + place]);
        if (any && !(value > most.value)) continue;
        most = {value, weight, place};
        any = true;
      }
    });
  });
  return most;
}

// Where the map of the bin's channel begins in x; -1: there is none.
__device__ __forceinline__ int64_t map_of(const RegionMaxima& p, const Bin& bin) {
  const int64_t image = image_of(p.image_of, bin.region, p.images);
  return image < 0 ? -1 : (image * p.channels + bin.channel) * p.rule.size[0] * p.rule.size[1];
}

}  // namespace

__global__ void __launch_bounds__(kSampleThreads) region_weights(RegionWeights p) {
  const int64_t i = thread_number();
  const int32_t bins = p.rule.bins[p.dim], size = p.rule.size[p.dim];
  if (i >= p.regions * bins) return;
  const int64_t region = i / bins;
  const SampleLine line = line_of(p.rule, p.dim, p.rois, region, static_cast<int32_t>(i - region * bins));
  for (int32_t k = 0; k < size; ++k) p.table.weights[i * size + k] = 0.0f;
  int32_t begin = size, end = 0;
  for_each_sample(line, [&](const Taps<2>& taps) {
    WEFT_UNROLL
    for (int k = 0; k < 2; ++k) {
      const int32_t index = taps.index[k];
      if (index < 0) continue;
      p.table.weights[i * size + index] = p.table.weights[i * size + index] + taps.weight[k];
      begin = index < begin ? index : begin;
      end = index + 1 > end ? index + 1 : end;
    }
  });
  p.table.ranges[2 * i] = begin;
  p.table.ranges[2 * i + 1] = end;
  if (i % bins == 0) p.table.totals[region] = static_cast<float>(line.total);
}
WEFT_KERNEL_ENTRY(region_weights, RegionWeights)

__global__ void __launch_bounds__(kSampleThreads) region_reach(RegionWeights p) {
  const int64_t region = thread_number();
  if (region >= p.regions) return;
  const int32_t bins = p.rule.bins[p.dim];
  int32_t begin = p.rule.size[p.dim], end = 0;
  for (int32_t b = 0; b < bins; ++b) {
    const int32_t first = p.table.ranges[2 * (region * bins + b)],
                  last = p.table.ranges[2 * (region * bins + b) + 1];
    begin = first < begin ? first : begin;
    end = last > end ? last : end;
  }
  p.table.reach[2 * region] = begin;
  p.table.reach[2 * region + 1] = end;
}
WEFT_KERNEL_ENTRY(region_reach, RegionWeights)

__global__ void __launch_bounds__(kSampleThreads) region_means(RegionMeans p) {
  const int64_t i = thread_number();
  if (i >= p.to.count) return;
  const Bin bin = bin_of(p.rule, p.channels, i);
  const int64_t image = image_of(p.image_of, bin.region, p.images);
  if (image < 0) {
    p.to[i] = 0.0f;
    return;
  }
  const int64_t map = (image * p.channels + bin.channel) * p.rule.size[0] * p.rule.size[1];
  float sum = 0;
  for_each_weight(p.rows, bin.region * p.rule.bins[0] + bin.row, p.rule.size[0],
                  [&](int32_t y, float by_row) {
                    float line = 0;
                    for_each_weight(p.columns, bin.region * p.rule.bins[1] + bin.column, p.rule.size[1],
                                    [&](int32_t x, float by_column) {
                                      line += by_column * p.from[map + int64_t{y} * p.rule.size[1] + x];
                                    });
                    sum += by_row * line;
                  });
  p.to[i] = sum / divisor_of(p, bin.region);
}
WEFT_KERNEL_ENTRY(region_means, RegionMeans)

// An element of dx asks all regions in turn.
__global__ void __launch_bounds__(kSampleThreads) region_means_grad(RegionMeans p) {
  const int64_t i = thread_number();
  if (i >= p.to.count) return;
  const int64_t row_number = i / p.rule.size[1], plane = row_number / p.rule.size[0];
  const auto x = static_cast<int32_t>(i - row_number * p.rule.size[1]);
  const auto y = static_cast<int32_t>(row_number - plane * p.rule.size[0]);
  const int64_t image = plane / p.channels, channel = plane - image * p.channels;
  float sum = 0;
  for (int64_t region = 0; region < p.regions; ++region) {
    if (y < p.rows.reach[2 * region] || y >= p.rows.reach[2 * region + 1]) continue;
    if (x < p.columns.reach[2 * region] || x >= p.columns.reach[2 * region + 1]) continue;
    if (image_of(p.image_of, region, p.images) != image) continue;
    const int64_t dy = (region * p.channels + channel) * p.rule.bins[0] * p.rule.bins[1];
    float share = 0;
    for (int32_t a = 0; a < p.rule.bins[0]; ++a) {
      const float by_row = p.rows.weights[(region * p.rule.bins[0] + a) * p.rule.size[0] + y];
      if (by_row == 0.0f) continue;
      float line = 0;
      for (int32_t b = 0; b < p.rule.bins[1]; ++b) {
        const float by_column = p.columns.weights[(region * p.rule.bins[1] + b) * p.rule.size[1] + x];
        if (by_column != 0.0f) line += by_column * p.from[dy + int64_t{a} * p.rule.bins[1] + b];
      }
      share += by_row * line;
    }
    sum += share / divisor_of(p, region);
  }
  p.to[i] = sum;
}
WEFT_KERNEL_ENTRY(region_means_grad, RegionMeans)

__global__ void __launch_bounds__(kSampleThreads) region_maxima(RegionMaxima p) {
  const int64_t i = thread_number();
  if (i >= p.y.count) return;
  const Bin bin = bin_of(p.rule, p.channels, i);
  const int64_t map = map_of(p, bin);
  p.y[i] = map < 0 ? 0.0f : static_cast<float>(largest(p, bin, map).value);
}
WEFT_KERNEL_ENTRY(region_maxima, RegionMaxima)

__global__ void __launch_bounds__(kSampleThreads) region_keys(RegionKeys p) {
  const int64_t i = thread_number();
  if (i >= p.keys.count) return;
  const Bin bin = bin_of(p.maxima.rule, p.maxima.channels, i);
  const int64_t map = map_of(p.maxima, bin);
  Largest most{0.0, 0.0, -1};
  if (map >= 0) most = largest(p.maxima, bin, map);
  p.keys[i] = most.place < 0 ? p.nowhere : static_cast<uint32_t>(map + most.place);
  p.weights[i] = static_cast<float>(most.weight);
}
WEFT_KERNEL_ENTRY(region_keys, RegionKeys)

}  // namespace weft::peer::cuda
