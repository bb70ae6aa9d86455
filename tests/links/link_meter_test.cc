#include "peer/service/link_meter.h"

#include <gtest/gtest.h>

namespace weft::peer {
namespace {

constexpr size_t kLarge = 1'000'000;
Instant at(int milliseconds) { return Instant(std::chrono::milliseconds(milliseconds)); }

TEST(LinkMeter, OneAfterTheOtherEachCountsWithItsOwnTime) {
  LinkMeter meter;
  meter.begin(at(0), kLarge, 0);
  meter.end(at(100), kLarge, kLarge);
  meter.begin(at(500), kLarge, kLarge);  // the link was idle
  meter.end(at(700), kLarge, 2 * kLarge);
  const proto::LinkUse use = meter.take();
  EXPECT_EQ(use.bytes_timed, 2 * kLarge);
  EXPECT_NEAR(use.seconds_timed, 0.3, 1e-9);
  EXPECT_NEAR(use.fastest_bytes_per_second, 1e7, 1);
  EXPECT_EQ(meter.take().bytes_timed, 0u);
}

// Two at once over a link of 10 MB/s: neither seems half as fast as the link is.
TEST(LinkMeter, WhatComesAtOnceCountsTogether) {
  LinkMeter meter;
  meter.begin(at(0), kLarge, 0);
  meter.begin(at(50), kLarge, 500'000);
  meter.end(at(180), kLarge, 1'800'000);
  meter.end(at(200), kLarge, 2'000'000);
  const proto::LinkUse use = meter.take();
  EXPECT_EQ(use.bytes_timed, 2 * kLarge);
  EXPECT_NEAR(use.seconds_timed, 0.2, 1e-9);
  EXPECT_NEAR(use.fastest_bytes_per_second, 1e7, 1);
}

TEST(LinkMeter, SmallOnesTellNothingByThemselvesAndAreNotLeftOut) {
  LinkMeter meter;
  meter.begin(at(0), 1000, 0);
  meter.end(at(1), 1000, 1000);
  EXPECT_EQ(meter.take().bytes_timed, 0u);
  meter.begin(at(10), kLarge, 1000);
  meter.begin(at(20), 50'000, 101'000);
  meter.end(at(25), 50'000, 151'000);
  meter.end(at(115), kLarge, 1'051'000);
  EXPECT_EQ(meter.take().bytes_timed, kLarge + 50'000);
}

TEST(LinkMeter, WhatWasDroppedIsNotTimed) {
  LinkMeter meter;
  meter.begin(at(0), kLarge, 0);
  meter.drop();
  meter.end(at(100), kLarge, kLarge);
  EXPECT_EQ(meter.take().bytes_timed, 0u);
}

}  // namespace
}  // namespace weft::peer
