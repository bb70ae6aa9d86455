#include "plan/noise.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace weft::plan {
namespace {

constexpr Noise kBound = {.forward = 0.05, .backward = 0.1};
constexpr double kGentler = 0.25;

double noise_of_bits(int bits) {
  switch (bits) {
    case 8:
      return 4.3e-5;
    case 6:
      return 6.9e-4;
    case 5:
      return 2.8e-3;
    case 4:
      return 1.21e-2;
    default:
      return 5.6e-2;
  }
}

}  // namespace

double noise_of(const compress::Codec& codec) {
  switch (codec.kind) {
    case compress::Kind::Dense:
    case compress::Kind::Float16:
      return 0;
    case compress::Kind::BFloat16:
      return 2.9e-6;
    case compress::Kind::Blocks:
      return noise_of_bits(codec.bits);
    case compress::Kind::TopK:
      return codec.floor_bits == 0 ? 1 : noise_of_bits(codec.floor_bits);
    case compress::Kind::RandomK:
      return 1;
  }
  return 1;
}

Noise noise_of(std::span<const LinkCodec> codecs) {
  std::map<uint32_t, Noise> added;  // by receiving stage
  for (const LinkCodec& link : codecs) {
    double& most = link.backward ? added[link.to_stage].backward : added[link.to_stage].forward;
    most = std::max(most, noise_of(link.codec));
  }
  Noise sum;
  for (const auto& [stage, noise] : added) {
    sum.forward += noise.forward;
    sum.backward += noise.backward;
  }
  return sum;
}

Noise noise_bound(const Compression& compression) {
  const double share = std::pow(kGentler, compression.gentler);
  return {.forward = kBound.forward * share, .backward = kBound.backward * share};
}

bool is_within(const Noise& noise, const Noise& bound) {
  return noise.forward <= bound.forward && noise.backward <= bound.backward;
}

}  // namespace weft::plan
