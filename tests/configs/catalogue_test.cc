#include "configs/catalogue.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

namespace weft::configs {
namespace {

std::string problem(const std::string& text) {
  const auto devices = parse_catalogue(text, "devices.yaml");
  EXPECT_FALSE(devices.has_value());
  return devices ? std::string() : devices.error().message;
}
void expect_says(const std::string& message, std::string_view what) {
  EXPECT_NE(message.find(what), std::string::npos) << message;
}

TEST(Catalogue, EveryDeviceIsPlausibleAndHasASource) {
  EXPECT_GE(catalogue().size(), 30u);
  std::set<std::string> names;
  for (const CatalogueDevice& device : catalogue()) {
    SCOPED_TRACE(device.name);
    EXPECT_TRUE(names.insert(device.name).second);
    for (const char c : device.name)
      EXPECT_TRUE((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-') << c;
    EXPECT_GE(device.peak_fp32_flops, 0.5e12);
    EXPECT_LE(device.peak_fp32_flops, 200e12);
    // Tensor cores are no slower than what they stand beside, and bf16 is twice tf32.
    EXPECT_GE(device.peak_tf32_flops.value_or(1e18), 0.99 * device.peak_fp32_flops);
    ASSERT_EQ(device.peak_tf32_flops.has_value(), device.peak_bf16_flops.has_value());
    EXPECT_NEAR(device.peak_bf16_flops.value_or(2) / device.peak_tf32_flops.value_or(1), 2, 0.03);
    EXPECT_GE(device.memory.value, int64_t{8} << 30);
    EXPECT_LE(device.memory.value, int64_t{256} << 30);
    EXPECT_GE(device.memory_bandwidth, 50e9);
    EXPECT_LE(device.memory_bandwidth, 10e12);
    // Operations for each byte: a slip of a factor of ten in either would show.
    EXPECT_GE(device.peak_fp32_flops / device.memory_bandwidth, 9);
    EXPECT_LE(device.peak_fp32_flops / device.memory_bandwidth, 110);
    EXPECT_GE(device.source.size(), 10u);
    for (const auto& price : {device.price, device.rent})
      EXPECT_GE(price.value_or(Price{.usd = 1, .as_of = {}, .source = "none"}).source.size(), 4u);
    if (device.price) {
      EXPECT_GE(device.price->usd, 200);
      EXPECT_LE(device.price->usd, 50'000);
    }
    if (device.rent) {
      EXPECT_GE(device.rent->usd, 0.05);
      EXPECT_LE(device.rent->usd, 20);
    }
  }
}

TEST(Catalogue, HasTheDevicesThatPeopleHave) {
  for (const char* name :
       {"rtx3060", "rtx3070",    "rtx3080",  "rtx3090", "rtx4060",   "rtx4070",   "rtx4080",
        "rtx4090", "rtx5060",    "rtx5070",  "rtx5080", "rtx5090",   "a100",      "h100",
        "h200",    "laptop-cpu", "a100-80g", "t4",      "rtx2080ti", "rx7900xtx", "gtx1080ti"}) {
    const auto device = find_device(name);
    ASSERT_TRUE(device.has_value()) << name;
    EXPECT_EQ(device->name, name);
    EXPECT_TRUE(device->price || device->rent || device->name == "t4") << name;
  }
  const auto unknown = find_device("RTX3080");
  EXPECT_EQ(unknown.error().code, ErrorCode::NotFound);
  expect_says(find_device("rtx380").error().message, "rtx3080");
}

TEST(Catalogue, IsTheFileOfTheRepository) {
  std::ifstream in(WEFT_SOURCE_DIR "/configs/devices.yaml");
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_EQ(devices_yaml(), text.str());
}

TEST(Catalogue, ProblemsNameTheLine) {
  const std::string figures = "peak_flops: {fp32: 1e13}, memory: 8GiB, memory_bandwidth: 4e11";
  const auto with = [&](const std::string& more) {
    return "devices:\n  x1: {" + figures + ", source: a sheet" + more + "}\n";
  };
  const auto good =
      parse_catalogue(with(", price: {usd: 5, as_of: 2020-01, source: a shop}"), "devices.yaml");
  ASSERT_TRUE(good.has_value()) << good.error().message;
  EXPECT_EQ(good->front().price->usd, 5);
  EXPECT_EQ(good->front().memory.value, int64_t{8} << 30);
  EXPECT_FALSE(good->front().peak_bf16_flops.has_value());
  expect_says(problem("devices:\n  x1: {" + figures + "}\n"),
              "devices.yaml:2:7: `devices.x1.source` is missing");
  expect_says(problem("devices:\n  X1: {" + figures + ", source: a sheet}\n"), "small letters");
  expect_says(problem(with(", colour: red")), "unknown key `devices.x1.colour`");
  expect_says(problem(with(", price: {usd: 0, as_of: 2020-01, source: s}")), "devices.x1.price.usd");
  expect_says(problem(with(", rent: {usd: 1, as_of: 2020-13, source: s}")), "a month");
  expect_says(problem(with(", rent: 3")), "devices.x1.rent");
  expect_says(problem("devices: {x1: {source: s}}\n"), "`devices.x1.peak_flops` is missing");
  expect_says(problem("devices: [x1]\n"), "devices");
  expect_says(problem("{}\n"), "`devices` is missing");
  expect_says(problem("format: 2\ndevices: {}\n"), "format");
}

}  // namespace
}  // namespace weft::configs
