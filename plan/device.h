// What a planner knows of a device: how fast, how much memory.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/units.h"

namespace weft::plan {

// Kinds of kernels that a device runs at rates of their own.
enum class Unit : uint8_t {
  MatMul,              // recurrent ops, too
  Convolution,         // forward, and the gradient of its input
  ConvolutionWeights,  // the gradient of its weights
  Pointwise,           // a convolution of one tap, in all directions
  Depthwise,           // a convolution of few channels a group, likewise
  Elementwise,         // and whatever has no kind of its own
  Normalisation,       // softmax, too
  Pooling,
  Shape,   // transposes, slices, look-ups; reductions, too
  Update,  // of parameters, by the optimizer
};
inline constexpr size_t kUnitCount = 10;
inline std::string_view to_string(Unit unit) {
  constexpr std::array<std::string_view, kUnitCount> kNames{
      "matmul",      "convolution",   "convolution_weights", "pointwise", "depthwise",
      "elementwise", "normalisation", "pooling",             "shape",     "update"};
  return kNames[static_cast<size_t>(unit)];
}

// A kernel takes launch + FLOPs / its rate + bytes / its bandwidth, each by size: the rate by how often a
// convolution uses each weight (elements of the images of a microbatch that it makes, a channel), because the
// weights have to be brought in place first, the bandwidth by all that the kernel reads and writes, because
// little of it stays in a cache. Positive, or, of a device that was not measured by unit, all zero.
struct UnitRates {
  double small_flops_per_second = 0;  // kSmallOutputs for each weight; of depthwise ones, kSmallImage
  double flops_per_second = 0;        // kLargeOutputs, kLargeImage, and whatever else
  double small_bytes_per_second = 0;  // kSmallBytes in all
  double bytes_per_second = 0;        // kLargeBytes
  bool operator==(const UnitRates&) const = default;
};
inline constexpr double kSmallOutputs = 4 * 7 * 7, kLargeOutputs = 2 * 28 * 28;
inline constexpr double kSmallImage = 7 * 7, kLargeImage = 28 * 28;
inline constexpr double kSmallBytes = 1 << 20, kLargeBytes = 1 << 25;

// What a device does when it does nothing else. The first four are all positive, and all that is known of
// devices from the catalogue and of peers of an older minor: their kernels take the longer of computing and
// moving, whatever their kind and size.
struct Rates {
  double matmul_flops_per_second = 1e9;
  double convolution_flops_per_second = 1e9;
  double memory_bytes_per_second = 1e9;  // of ops that only move data: bytes read and written
  double kernel_seconds = 0;             // what launching one kernel costs
  std::array<UnitRates, kUnitCount> units{};

  bool by_unit() const { return units[0].flops_per_second > 0; }
  const UnitRates& of(Unit unit) const { return units[static_cast<size_t>(unit)]; }
  UnitRates& of(Unit unit) { return units[static_cast<size_t>(unit)]; }
  bool operator==(const Rates&) const = default;
};

// What the first four are taken to mean for a unit that was not measured, in the proportions of a processor.
inline UnitRates rates_of_four(Unit unit, const Rates& rates) {
  const auto of = [&](double flops, double bytes) {
    return UnitRates{0.75 * flops, flops, bytes * rates.memory_bytes_per_second,
                     bytes * rates.memory_bytes_per_second};
  };
  switch (unit) {
    case Unit::MatMul:
      return of(rates.matmul_flops_per_second, 0.5);
    case Unit::Convolution:
    case Unit::Pointwise:
      return of(rates.convolution_flops_per_second, 1);
    case Unit::ConvolutionWeights:
      return of(0.75 * rates.convolution_flops_per_second, 1);
    case Unit::Depthwise:
      return of(0.25 * rates.convolution_flops_per_second, 1);
    case Unit::Normalisation:
    case Unit::Shape:
      return of(0.25 * rates.matmul_flops_per_second, 0.75);
    case Unit::Pooling:
      return of(0.25 * rates.matmul_flops_per_second, 0.4);
    case Unit::Elementwise:
    case Unit::Update:
      return of(0.25 * rates.matmul_flops_per_second, 1);
  }
  return {};
}

}  // namespace weft::plan
