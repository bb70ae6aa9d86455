// Links as a table for people.
#include "cli/links_table.h"

#include <gtest/gtest.h>

namespace weft::cli {
namespace {

using std::chrono::milliseconds;

TEST(LinksTable, RatesAreShort) {
  EXPECT_EQ(short_rate(1e6), "8.0M");
  EXPECT_EQ(short_rate(12.5e6), "100M");
  EXPECT_EQ(short_rate(124.99e6), "1.0G");
  EXPECT_EQ(short_rate(1.25e9), "10G");
  EXPECT_EQ(short_rate(1e3), "8.0k");
  EXPECT_EQ(short_rate(plan::kUnlimited), "-");
}

TEST(LinksTable, AFewAreShownEachWithEach) {
  std::vector<plan::DeviceView> devices{
      {.name = "desk", .uplink = 1e6, .downlink = 12.5e6, .site = 0},
      {.name = "rack\x1b[31m", .uplink = 125e6, .downlink = 125e6, .site = 0},
      {.name = "a name that is longer than its column", .uplink = 5e6, .downlink = 5e6, .site = 1}};
  plan::ClusterView view(std::move(devices));
  view.set_between(0, 0, {.bytes_per_second = 50e6, .latency = milliseconds(2)});
  view.set_between(0, 1, {.bytes_per_second = 2e6, .latency = milliseconds(40)});
  view.set_between(1, 0, {.bytes_per_second = 1.25e6, .latency = milliseconds(100), .is_assumed = true});
  const std::optional<double> since[] = {75.0, 3.0, std::nullopt};
  EXPECT_EQ(links_table(view, since),
            "from each row to each column, bits a second; ~ is a guess, nobody has measured it\n"
            "\n"
            "#  NAME                        UP  DOWN    MEASURED     1     2     3\n"
            "1  desk                      8.0M  100M  1m 15s ago     -  8.0M  8.0M\n"
            "2  rack?[31m                 1.0G  1.0G      3s ago  100M     -   16M\n"
            "3  a name that is longer th   40M   40M       never  ~10M  ~10M     -\n"
            "\n"
            "one way, ms\n"
            "\n"
            "#  NAME                         1     2   3\n"
            "1  desk                         -   2.0  40\n"
            "2  rack?[31m                  2.0     -  40\n"
            "3  a name that is longer th  ~100  ~100   -\n");
}

TEST(LinksTable, ManyAreShownBySite) {
  std::vector<plan::DeviceView> devices;
  for (uint32_t d = 0; d < 20; ++d)
    devices.push_back({.name = "n" + std::to_string(d),
                       .uplink = d % 2 == 0 ? 1e6 : 2e6,
                       .downlink = 125e6,
                       .site = d < 19 ? 0u : 1u});
  plan::ClusterView view(std::move(devices));
  view.set_between(0, 0, {.bytes_per_second = 50e6, .latency = milliseconds(2)});
  view.set_between(0, 1, {.bytes_per_second = 2e6, .latency = milliseconds(40)});
  view.set_between(1, 0, {.bytes_per_second = 1e6, .latency = milliseconds(41), .is_assumed = true});
  const std::string text = links_table(view, {});
  EXPECT_NE(text.find("#  SITE                    PEERS         UP  DOWN      1    2\n"
                      "1  n0, n1, n2 and 16 more     19  8.0M..16M  1.0G   400M  16M\n"
                      "2  n19                         1        16M  1.0G  ~8.0M    -\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(links_table(plan::ClusterView(), {}), "no peers\n");
}

}  // namespace
}  // namespace weft::cli
