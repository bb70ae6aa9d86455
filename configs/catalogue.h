// The devices that are known by type: configs/devices.yaml, which the program carries along.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "plan/device.h"

namespace weft::configs {

struct Price {
  double usd = 0;
  std::string as_of;  // a month, "2020-09"
  std::string source;
};

struct CatalogueDevice {
  std::string name;
  double peak_fp32_flops = 0;                              // a second, without tensor cores
  std::optional<double> peak_tf32_flops, peak_bf16_flops;  // with them: dense, sums in fp32
  Bytes memory;
  double memory_bandwidth = 0;  // bytes a second
  std::optional<Price> price;   // of one, bought
  std::optional<Price> rent;    // of one, for an hour
  std::string source;           // of the figures
};
std::span<const CatalogueDevice> catalogue();
// NotFound, with the names there are.
Result<CatalogueDevice> find_device(std::string_view name);
// What a device of such figures is taken to reach: a share of its peaks, and a launch for each kernel.
plan::Rates rates_of(double peak_fp32_flops, double memory_bandwidth);

// Errors tell every problem with its place, InvalidArgument mostly.
Result<std::vector<CatalogueDevice>> parse_catalogue(std::string_view text, const std::string& source);
// configs/devices.yaml as it was when the program was built.
std::string_view devices_yaml();

}  // namespace weft::configs
