#include "configs/cluster.h"

#include <gtest/gtest.h>

#include "tests/support/scratch.h"

namespace weft::configs {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// The example of the cluster file's description.
const std::string kExample = R"(devices:
  - {type: rtx3080, count: 8, region: oregon}
  - {name: lab, peak_flops: {fp32: 2.0e13, bf16: 8.0e13}, memory: 24GiB, memory_bandwidth: 9.0e11, region: tokyo, uplink: 20Mbit, downlink: 200Mbit}
regions:
  within:  {round_trip_ms: 1, bandwidth: 10Gbit}
  between: [{from: oregon, to: tokyo, round_trip_ms: 92, bandwidth: 262Mbit, jitter_ms: 3, loss: 0.001}]
)";

Cluster parsed(const std::string& text) {
  auto cluster = parse_cluster(text);
  EXPECT_TRUE(cluster.has_value()) << (cluster ? "" : cluster.error().message);
  return cluster.value_or(Cluster{});
}
std::string problem(const std::string& text, ErrorCode code = ErrorCode::InvalidArgument) {
  const auto cluster = parse_cluster(text);
  EXPECT_FALSE(cluster.has_value());
  if (cluster) return {};
  EXPECT_EQ(cluster.error().code, code) << cluster.error().message;
  return cluster.error().message;
}
void expect_says(const std::string& message, std::string_view what) {
  EXPECT_NE(message.find(what), std::string::npos) << message;
}

TEST(Cluster, TheExampleIsRead) {
  const Cluster cluster = parsed(kExample);
  ASSERT_EQ(cluster.devices.size(), 9u);
  EXPECT_EQ(cluster.devices[0].name, "rtx3080-1");
  EXPECT_EQ(cluster.devices[7].name, "rtx3080-8");
  EXPECT_EQ(cluster.devices[0].type, "rtx3080");
  EXPECT_EQ(cluster.devices[0].memory.value, int64_t{10} << 30);
  EXPECT_EQ(cluster.devices[8].name, "lab");
  EXPECT_EQ(cluster.devices[8].peak_fp32_flops, 2e13);
  EXPECT_EQ(cluster.devices[8].peak_bf16_flops, 8e13);
  EXPECT_EQ(cluster.devices[8].memory.value, int64_t{24} << 30);
  EXPECT_EQ(cluster.devices[8].uplink, 2.5e6);
  EXPECT_EQ(cluster.devices[8].downlink, 25e6);
  EXPECT_EQ(cluster.regions, (std::vector<std::string>{"oregon", "tokyo"}));
  EXPECT_EQ(cluster.broker, "") << "everywhere at once";
}

TEST(Cluster, HalfOfTheRoundTripIsEachWay) {
  const Cluster cluster = parsed(kExample);
  const LinkProfile expected{262e6 / 8, milliseconds(46), milliseconds(3), 0.001};
  EXPECT_EQ(*link_between(cluster, "oregon", "tokyo"), expected);
  EXPECT_EQ(*link_between(cluster, "tokyo", "oregon"), expected);
  EXPECT_EQ(*link_between(cluster, "tokyo", "tokyo"), (LinkProfile{1.25e9, microseconds(500), {}, 0}));
}

TEST(Cluster, AWayMayDifferFromTheWayBack) {
  const Cluster cluster = parsed(R"(regions:
  within: {round_trip_ms: 0, bandwidth: 1Gbit}
  between:
    - {from: a, to: b, round_trip_ms: 10, bandwidth: 8Mbit, one_way: true}
    - {from: b, to: a, round_trip_ms: 20, bandwidth: 100Mbit, one_way: true}
broker: b
)");
  EXPECT_EQ(link_between(cluster, "a", "b")->bytes_per_second, 1e6);
  EXPECT_EQ(link_between(cluster, "b", "a")->latency, milliseconds(10));
  EXPECT_EQ(cluster.broker, "b");
  EXPECT_TRUE(cluster.devices.empty());
}

TEST(Cluster, TheBrokersRegionIsRead) { EXPECT_EQ(parsed(kExample + "broker: tokyo\n").broker, "tokyo"); }

TEST(Cluster, ADeviceIsFoundInItsRegion) {
  const Cluster cluster = parsed(kExample);
  EXPECT_EQ(device_in(cluster, "lab", "tokyo")->uplink, 2.5e6);
  EXPECT_FALSE(device_in(cluster, "rtx3080-3", "oregon")->uplink.has_value());
  const auto elsewhere = device_in(cluster, "lab", "oregon");
  EXPECT_EQ(elsewhere.error().code, ErrorCode::InvalidArgument);
  expect_says(elsewhere.error().message, "device 'lab' is in 'tokyo', not in 'oregon'");
  expect_says(elsewhere.error().message, "there are rtx3080-1, rtx3080-2");
  const auto unknown = device_in(cluster, "labb", "tokyo");
  EXPECT_EQ(unknown.error().code, ErrorCode::NotFound);
  expect_says(unknown.error().message, "has no device 'labb'");
  expect_says(unknown.error().message, "in 'tokyo' there is lab");
  const Cluster many = parsed(
      "devices: [{type: t4, count: 50, region: a}]\nregions: {within: {round_trip_ms: 1, bandwidth: "
      "1Gbit}}\n");
  expect_says(device_in(many, "x", "a").error().message, "t4-20 and 30 more");
  expect_says(device_in(many, "x", "b").error().message, "in 'b' there is none");
}

TEST(Cluster, TheViewTakesTheNarrowestPartOfAWay) {
  const plan::ClusterView cluster = view(parsed(kExample));
  ASSERT_EQ(cluster.devices().size(), 9u);
  EXPECT_EQ(cluster.link(8, 0).bytes_per_second, 2.5e6) << "uplink";
  EXPECT_EQ(cluster.link(0, 8).bytes_per_second, 25e6) << "downlink";
  EXPECT_EQ(cluster.link(0, 8).latency, milliseconds(46) + microseconds(1500)) << "with the jitter's mean";
  EXPECT_EQ(cluster.link(0, 1).bytes_per_second, 1.25e9);
  EXPECT_EQ(cluster.devices()[0].region, "oregon");
  EXPECT_EQ(cluster.devices()[0].fingerprint, cluster.devices()[1].fingerprint);
  EXPECT_NE(cluster.devices()[0].fingerprint, cluster.devices()[8].fingerprint);
  EXPECT_GT(cluster.devices()[0].rates.matmul_flops_per_second, 1e13);
  EXPECT_LT(cluster.devices()[0].rates.matmul_flops_per_second, 29.77e12);
}

TEST(Cluster, LinksMayBeListedByDevice) {
  const std::string devices = R"(devices:
  - {name: a, type: t4}
  - {name: b, type: t4}
links:
  - {from: a, to: b, round_trip_ms: 4, bandwidth: 80Mbit}
)";
  const std::string other = "  - {from: b, to: a, round_trip_ms: 8, bandwidth: 8Mbit}\n";
  const plan::ClusterView cluster = view(parsed(devices + other));
  EXPECT_EQ(cluster.link(0, 1).bytes_per_second, 1e7);
  EXPECT_EQ(cluster.link(1, 0).latency, milliseconds(4));
  expect_says(problem(devices), "no link from 'b' to 'a'");
  expect_says(
      problem(devices + "  - {from: b, to: c, round_trip_ms: 8, bandwidth: 8Mbit}\n", ErrorCode::NotFound),
      "no device 'c'");
  EXPECT_EQ(link_between(parsed(devices + other), "x", "y").error().code, ErrorCode::NotFound);
}

TEST(Cluster, GivenFiguresGoOverTheCatalogue) {
  const Cluster cluster = parsed("devices: [{type: rtx3090, memory: 20GiB}]\n");
  EXPECT_EQ(cluster.devices[0].memory.value, int64_t{20} << 30);
  EXPECT_EQ(cluster.devices[0].peak_fp32_flops, 35.58e12);
  EXPECT_EQ(cluster.devices[0].peak_bf16_flops, 71e12);
}

TEST(Cluster, ProblemsNameTheLine) {
  expect_says(problem(kExample + "colour: red\n"), "cluster.yaml:7:1: unknown key `colour`");
  expect_says(problem("devices:\n  - {type: rtx380, region: a}\n", ErrorCode::NotFound), "cluster.yaml:2:12");
  expect_says(problem("devices:\n  - {type: rtx380, region: a}\n", ErrorCode::NotFound), "rtx3080");
  expect_says(problem("devices: [{name: x, memory: 1GiB, memory_bandwidth: 1e9}]\n"),
              "peak_flops` is missing");
  expect_says(problem("devices: [{type: t4, memory: 1 pound}]\n"), "24GiB");
  expect_says(problem("devices: [{type: t4, count: 0}]\n"), "count");
  expect_says(problem("devices: [{type: t4, uplink: 20}]\n"), "100Mbit");
  expect_says(problem("devices: [{type: t4, speed: 20}]\n"), "unknown key `devices[0].speed`");
  expect_says(problem("devices: [{type: t4, name: a}, {type: t4, name: a}]\nlinks: []\n"), "two devices 'a'");
  expect_says(problem("devices: 3\n"), "must be a list");
  expect_says(problem("{}\n"), "regions");
}

TEST(Cluster, ProblemsOfRegions) {
  const auto with = [](const std::string& between) {
    return "devices: [{type: t4, region: a}, {type: t4, region: b}]\nregions:\n  within: {round_trip_ms: 1, "
           "bandwidth: "
           "1Gbit}\n  between: " +
           between + "\n";
  };
  expect_says(problem(with("[]")), "nothing is said of the way from 'a' to 'b'");
  const std::string good = "{from: a, to: b, round_trip_ms: 2, bandwidth: 1Mbit}";
  EXPECT_TRUE(parse_cluster(with("[" + good + "]")).has_value());
  expect_says(
      problem(with("[" + good + ", {from: b, to: a, round_trip_ms: 2, bandwidth: 1Mbit, one_way: true}]")),
      "was given before");
  expect_says(problem(with("[" + good + "]") + "broker: c\n", ErrorCode::NotFound), "no region 'c'");
  expect_says(problem(with("[{from: a, to: b, round_trip_ms: -2, bandwidth: 1Mbit}]")), "round_trip_ms");
  expect_says(problem(with("[{from: a, to: b, round_trip_ms: 2, bandwidth: 1Mbit, loss: 1}]")), "loss");
  expect_says(problem(with("[{from: a, to: b, round_trip_ms: 2, bandwidth: 1Mbps}]")), "100Mbit");
  expect_says(problem(with("[{from: a, to: a, round_trip_ms: 2, bandwidth: 1Mbit}]")), "within");
  expect_says(
      problem(
          "devices: [{type: t4}, {type: t4}]\nregions:\n  within: {round_trip_ms: 1, bandwidth: 1Gbit}\n"),
      "has no `region`");
  expect_says(link_between(parsed(kExample), "oregon", "tokio").error().message, "tokyo");
}

TEST(Cluster, Units) {
  EXPECT_EQ(parse_bandwidth("100Mbit"), 12.5e6);
  EXPECT_EQ(parse_bandwidth("10Gbit"), 1.25e9);
  EXPECT_EQ(parse_bandwidth("0.5 kbit"), 62.5);
  EXPECT_EQ(parse_memory("24GiB"), Bytes{int64_t{24} << 30});
  EXPECT_EQ(parse_memory("1.5KiB"), Bytes{1536});
  EXPECT_EQ(parse_memory("2GB"), Bytes{2'000'000'000});
  for (const char* bad :
       {"", "Mbit", "100", "-1Mbit", "0Mbit", "nanMbit", "infMbit", "100mbit", "100Mbit/s", "1e9Gbit"})
    EXPECT_FALSE(parse_bandwidth(bad).has_value()) << bad;
  for (const char* bad : {"", "GiB", "24", "0GiB", "-1GiB", "24Gib", "99999999999TiB"})
    EXPECT_FALSE(parse_memory(bad).has_value()) << bad;
}

TEST(Cluster, AFileIsLoaded) {
  const test::Scratch scratch;
  EXPECT_EQ(load_cluster(scratch.folder() / "none.yaml").error().code, ErrorCode::NotFound);
  scratch.write("cluster.yaml", kExample);
  const auto cluster = load_cluster(scratch.folder() / "cluster.yaml");
  ASSERT_TRUE(cluster.has_value()) << cluster.error().message;
  EXPECT_EQ(cluster->devices.size(), 9u);
}

}  // namespace
}  // namespace weft::configs
