// Places between elements, in double as every backend has them (peer/backend/reference/places.h).
#pragma once

#include "peer/backend/cuda/kernels/block.cuh"
#include "peer/backend/cuda/kernels/sampling.h"

namespace weft::peer::cuda {

__device__ __forceinline__ int64_t thread_number() {
  return int64_t{blockIdx.x} * kSampleThreads + threadIdx.x;
}

// A place along one dim, in elements, and how it moves with the coordinate that gave it.
struct Place {
  double at, slope;
};

// What a sample reads along one dim: elements (-1: none), their weights, and how those grow with the place.
template <int kTaps>
struct Taps {
  int32_t index[kTaps];
  float weight[kTaps], slope[kTaps];
  __device__ __forceinline__ void set(int k, int64_t at, int32_t size, double by, double growth) {
    index[k] = at >= 0 && at < size ? static_cast<int32_t>(at) : -1;
    weight[k] = static_cast<float>(by);
    slope[k] = static_cast<float>(growth);
  }
  __device__ __forceinline__ void set_none(int k) {
    index[k] = -1;
    weight[k] = slope[k] = 0.0f;
  }
};

// Places far away, and those that are no numbers, reach nothing.
__device__ __forceinline__ bool is_reachable(double at, int32_t size) {
  return at > -3.0 && at < static_cast<double>(size) + 2.0;
}

__device__ __forceinline__ Taps<2> linear_taps(Place place, int32_t size) {
  Taps<2> taps;
  if (!is_reachable(place.at, size)) {
    taps.set_none(0);
    taps.set_none(1);
    return taps;
  }
  const double below = floor(place.at), ratio = place.at - below;
  const auto index = static_cast<int64_t>(below);
  taps.set(0, index, size, 1.0 - ratio, -place.slope);
  taps.set(1, index + 1, size, ratio, place.slope);
  return taps;
}

}  // namespace weft::peer::cuda
