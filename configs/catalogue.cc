#include "configs/catalogue.h"

#include <algorithm>

#include "base/check.h"
#include "configs/device_figures.h"
#include "configs/reader.h"

namespace weft::configs {
namespace {

// What kernels reach of the peaks in practice.
constexpr double kMatmulShare = 0.7;
constexpr double kConvolutionShare = 0.5;
constexpr double kMemoryShare = 0.8;
constexpr double kKernelSeconds = 5e-6;

constexpr double kUsdMax = 1e7;

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

// "2020-09".
bool is_month(std::string_view text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return text.size() == 7 && text[4] == '-' && std::all_of(text.begin(), text.begin() + 4, is_digit) &&
         is_digit(text[5]) && is_digit(text[6]) && text.substr(5) >= "01" && text.substr(5) <= "12";
}

class CatalogueReader {
 public:
  explicit CatalogueReader(const Node& tree) : root_(tree, "", problems_) {}

  Result<std::vector<CatalogueDevice>> read() {
    root_.count("format", 1, 1, 1);
    if (const Node* node = root_.require("devices", "a map of devices by name")) {
      const MapReader devices(*node, "devices", problems_);  // says so where it is no map
      for (const Entry& entry : node->entries) read_device(entry);
    }
    root_.finish();
    if (!problems_.empty()) return fail(problems_.error());
    return std::move(devices_);
  }

 private:
  void read_device(const Entry& entry) {
    const std::string path = "devices." + entry.key;
    MapReader reader(entry.value, path, problems_);
    if (!is_name(entry.key))
      reader.problem(entry.where, "a device's name has small letters, digits and dashes, as rtx3080");
    const DeviceFigures figures = read_figures(reader, path, problems_, std::nullopt);
    devices_.push_back({.name = entry.key,
                        .peak_fp32_flops = figures.peak_fp32_flops,
                        .peak_tf32_flops = figures.peak_tf32_flops,
                        .peak_bf16_flops = figures.peak_bf16_flops,
                        .memory = figures.memory,
                        .memory_bandwidth = figures.memory_bandwidth,
                        .price = read_price(reader, "price"),
                        .rent = read_price(reader, "rent"),
                        .source = reader.required_text("source", "where its figures are published")});
    reader.finish();
  }

  std::optional<Price> read_price(MapReader& device, std::string_view key) {
    const Node* node = device.take(key);
    if (!node) return std::nullopt;
    MapReader reader(*node, device.path_of(key), problems_);
    Price price;
    if (const Node* usd = reader.require("usd", "US dollars"))
      price.usd = reader.parse_number(*usd, "usd", {0, kUsdMax, /*above_min=*/true}).value_or(1);
    price.as_of = reader.required_text("as_of", "a month, as 2020-09");
    if (reader.is_map() && !is_month(price.as_of))
      reader.problem(node->where, "`" + reader.path_of("as_of") + "` must be a month, as 2020-09");
    price.source = reader.required_text("source", "who asked that");
    reader.finish();
    return price;
  }

  Problems problems_;
  MapReader root_;
  std::vector<CatalogueDevice> devices_;
};

}  // namespace

Result<std::vector<CatalogueDevice>> parse_catalogue(std::string_view text, const std::string& source) {
  WEFT_TRY(const Node tree, parse_yaml(text, source));
  return CatalogueReader(tree).read();
}

std::span<const CatalogueDevice> catalogue() {
  static const auto kDevices = parse_catalogue(devices_yaml(), "configs/devices.yaml");
  WEFT_CHECK_MSG(kDevices.has_value(), kDevices ? "" : kDevices.error().message.c_str());
  return *kDevices;
}

Result<CatalogueDevice> find_device(std::string_view name) {
  std::vector<std::string> names;
  for (const CatalogueDevice& device : catalogue()) {
    if (device.name == name) return device;
    names.push_back(device.name);
  }
  return fail(ErrorCode::NotFound,
              "there is no device type '" + std::string(name.substr(0, 60)) + "'" + suggestion(name, names));
}

plan::Rates rates_of(double peak_fp32_flops, double memory_bandwidth) {
  return {kMatmulShare * peak_fp32_flops, kConvolutionShare * peak_fp32_flops,
          kMemoryShare * memory_bandwidth, kKernelSeconds};
}

}  // namespace weft::configs
