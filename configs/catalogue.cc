#include <algorithm>

#include "configs/cluster.h"
#include "configs/yaml.h"

namespace weft::configs {
namespace {

constexpr Bytes gib(int64_t count) { return {count << 30}; }

// What kernels reach of the peaks in practice.
constexpr double kMatmulShare = 0.7;
constexpr double kConvolutionShare = 0.5;
constexpr double kMemoryShare = 0.8;
constexpr double kKernelSeconds = 5e-6;

constexpr CatalogueDevice kCatalogue[] = {
    {"a10", 31.2e12, gib(24), 600e9},       {"a100", 19.5e12, gib(40), 1555e9},
    {"a100-80g", 19.5e12, gib(80), 2039e9}, {"a40", 37.4e12, gib(48), 696e9},
    {"a6000", 38.7e12, gib(48), 768e9},     {"gtx1080ti", 11.34e12, gib(11), 484e9},
    {"h100", 66.9e12, gib(80), 3350e9},     {"l4", 30.3e12, gib(24), 300e9},
    {"p100", 10.6e12, gib(16), 732e9},      {"rtx2080ti", 13.45e12, gib(11), 616e9},
    {"rtx3060", 12.74e12, gib(12), 360e9},  {"rtx3070", 20.31e12, gib(8), 448e9},
    {"rtx3080", 29.77e12, gib(10), 760e9},  {"rtx3090", 35.58e12, gib(24), 936e9},
    {"rtx4070", 29.15e12, gib(12), 504e9},  {"rtx4080", 48.74e12, gib(16), 717e9},
    {"rtx4090", 82.58e12, gib(24), 1008e9}, {"rx7900xtx", 61.4e12, gib(24), 960e9},
    {"t4", 8.1e12, gib(16), 320e9},         {"v100", 15.7e12, gib(16), 900e9},
};

}  // namespace

std::span<const CatalogueDevice> catalogue() { return kCatalogue; }

Result<CatalogueDevice> find_device(std::string_view name) {
  for (const CatalogueDevice& device : kCatalogue)
    if (device.name == name) return device;
  std::vector<std::string> names;
  for (const CatalogueDevice& device : kCatalogue) names.emplace_back(device.name);
  return fail(ErrorCode::NotFound,
              "there is no device type '" + std::string(name.substr(0, 60)) + "'" + suggestion(name, names));
}

plan::Rates rates_of(double peak_fp32_flops, double memory_bandwidth) {
  return {kMatmulShare * peak_fp32_flops, kConvolutionShare * peak_fp32_flops,
          kMemoryShare * memory_bandwidth, kKernelSeconds};
}

}  // namespace weft::configs
