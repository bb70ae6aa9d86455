// Kernels of RoiAlign. A mean's samples stand on a lattice, so that an element's weight in a bin is a product
// of one by row and one by column: both are tabled once, in double, for all channels and both directions.
#pragma once

#include "peer/backend/cuda/kernels/index.cuh"

namespace weft::peer::cuda {

struct RegionRule {
  int32_t bins[2];  // along y, along x
  int32_t size[2];  // of the map
  int64_t sampling_ratio;
  double scale;
  int32_t align_corners;
};

// Of one dim. What bin b of region r takes of element i: weights[(r * bins + b) * size + i], of those in
// [ranges[2 * (r * bins + b)], ... + 1); all of the region's lie within reach[2 * r] and reach[2 * r + 1].
struct RegionTable {
  Array<float> weights, totals;  // totals[r]: samples of a bin, with those beside the map
  Array<int32_t> ranges, reach;
};

struct RegionWeights {
  RegionRule rule;
  int32_t dim;  // 0: along y
  int64_t regions;
  Array<const float> rois;  // [regions, 4]: x1, y1, x2, y2
  RegionTable table;
};
extern const EntryOf<RegionWeights> k_region_weights;
extern const EntryOf<RegionWeights> k_region_reach;

struct RegionMeans {
  RegionRule rule;
  int64_t regions, images, channels;
  Indices image_of;  // of each region
  RegionTable rows, columns;
  Array<const float> from;  // x [images, channels, map], or dy [regions, channels, bins]
  Array<float> to;          // the other one
};
extern const EntryOf<RegionMeans> k_region_means;
extern const EntryOf<RegionMeans> k_region_means_grad;

// Not the mean but the largest weighted element.
struct RegionMaxima {
  RegionRule rule;
  int64_t images, channels;
  Indices image_of;
  Array<const float> rois, x;
  Array<float> y;
};
extern const EntryOf<RegionMaxima> k_region_maxima;
// Which element of x that was, and its weight; `nowhere` where it was none.
struct RegionKeys {
  RegionMaxima maxima;  // without y
  uint32_t nowhere;
  Array<uint32_t> keys;
  Array<float> weights;
};
extern const EntryOf<RegionKeys> k_region_keys;

}  // namespace weft::peer::cuda
