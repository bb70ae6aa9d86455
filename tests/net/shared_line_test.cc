#include "net/model/shared_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/rng.h"
#include "net/model/link_model.h"
#include "net/model/rate_clock.h"

namespace weft::net {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Instant kStart{std::chrono::hours(5)};

size_t sum(const std::vector<SharedLine::Passed>& passed) {
  size_t size = 0;
  for (const auto& each : passed) size += each.size;
  return size;
}
size_t by(const std::vector<SharedLine::Passed>& passed, Instant at) {
  size_t size = 0;
  for (const auto& each : passed)
    if (each.at <= at) size += each.size;
  return size;
}

TEST(RateClock, AgreesWithFloatingPointOnRandomTraffic) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    const double rate = std::exp(std::log(1e4) + rng.uniform() * std::log(1e6));
    const Duration burst(static_cast<int64_t>(rng.below(2'000'000)));
    RateClock clock(rate, burst);
    long double free = 0, now = 0;
    for (int i = 0; i < 2000; ++i) {
      const uint64_t size = rng.below(3000);
      const Duration wait(static_cast<int64_t>(rng.below(2) * rng.below(static_cast<uint64_t>(3e12 / rate))));
      now += static_cast<long double>(wait.count());
      free = i == 0 ? now : std::max(free, now - static_cast<long double>(burst.count()));
      free += static_cast<long double>(size) * 1e9L / static_cast<long double>(rate);
      const Instant at = kStart + Duration(static_cast<int64_t>(now));
      const auto expected = static_cast<double>(std::max(free, now));
      // The rate is a whole number of bits a second.
      EXPECT_NEAR(static_cast<double>((clock.pass(size, at) - kStart).count()), expected,
                  2 + expected * 1 / (8 * rate));
    }
  }
}

TEST(RateClock, OddRatesAndSizesAreHarmless) {
  for (const double rate : {-1.0, 0.0, std::numeric_limits<double>::quiet_NaN(), 1e300})
    EXPECT_FALSE(RateClock(rate).is_limited()) << rate;
  RateClock slow(1e-9);
  for (int i = 0; i < 100; ++i) EXPECT_GT(slow.pass(UINT64_MAX, kStart), kStart);
}

TEST(SharedLine, OneFlowHasAllOfIt) {
  SharedLine line(1e6);
  const auto flow = line.add();
  (void)line.add();
  line.enter(flow, 1'000'000, kStart);
  const auto passed = line.take(flow, kStart + seconds(10));
  EXPECT_EQ(sum(passed), 1'000'000u);
  EXPECT_EQ(passed.back().at, kStart + seconds(1));
  EXPECT_FALSE(line.next(flow).has_value());
}

TEST(SharedLine, WhoAsksLateLosesNothingAndTakesNothing) {
  SharedLine line(1e6);
  const auto eager = line.add(), late = line.add();
  line.enter(eager, 1'000'000, kStart);
  line.enter(late, 1'000'000, kStart);
  size_t taken = 0;
  for (int ms = 0; ms <= 1000; ++ms) taken += sum(line.take(eager, kStart + milliseconds(ms)));
  EXPECT_NEAR(static_cast<double>(taken), 500'000, 2 * kSegmentSize);
  const auto passed = line.take(late, kStart + seconds(1));
  EXPECT_NEAR(static_cast<double>(sum(passed)), 500'000, 2 * kSegmentSize);
  EXPECT_NEAR(static_cast<double>(by(passed, kStart + milliseconds(500))), 250'000, 2 * kSegmentSize);
}

TEST(SharedLine, ASmallOneDoesNotWaitForABigOne) {
  SharedLine line(1e6);
  const auto big = line.add(), small = line.add();
  line.enter(big, 64 << 20, kStart);
  for (int i = 1; i < 100; ++i) {
    const Instant at = kStart + milliseconds(20 * i);
    line.enter(small, 100, at);
    const auto passed = line.take(small, at + milliseconds(10));
    ASSERT_EQ(sum(passed), 100u);
    EXPECT_LE(passed.back().at, at + milliseconds(3));  // a segment is under way, and one before it
  }
}

TEST(SharedLine, WhatLiesAheadKeepsNobodyWaiting) {
  SharedLine line(1e6);
  const auto far = line.add(), near = line.add();
  line.enter(far, 1000, kStart + milliseconds(100));
  line.enter(near, 1000, kStart);
  EXPECT_EQ(line.take(near, kStart + milliseconds(5)).back().at, kStart + milliseconds(1));
  EXPECT_TRUE(line.take(far, kStart + milliseconds(99)).empty());
  EXPECT_EQ(line.next(far), kStart + milliseconds(101));
  EXPECT_EQ(line.take(far, kStart + milliseconds(100)).back().at, kStart + milliseconds(101));
}

TEST(SharedLine, AFlowThatLeavesLeavesItsPart) {
  SharedLine line(1e6);
  const auto stays = line.add(), leaves = line.add();
  line.enter(stays, 1'000'000, kStart);
  line.enter(leaves, 1'000'000, kStart);
  const size_t before = sum(line.take(stays, kStart + milliseconds(100)));
  line.remove(leaves);
  const size_t after = sum(line.take(stays, kStart + milliseconds(200)));
  EXPECT_NEAR(static_cast<double>(before), 50'000, 2 * kSegmentSize);
  EXPECT_NEAR(static_cast<double>(after), 100'000, 2 * kSegmentSize);
}

// Against a naive line that serves byte by byte in turn: at any time each flow is within a piece of each
// other flow of it, as such a queue promises, and the line as a whole has passed the same.
TEST(SharedLine, IsNeverFarFromServingByteByByte) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    constexpr Duration kByte = std::chrono::microseconds(1);  // at 1 MB a second
    const size_t flows = 2 + rng.below(4);
    SharedLine line(1e6);
    std::vector<SharedLine::Flow> ids;
    for (size_t i = 0; i < flows; ++i) ids.push_back(line.add());
    std::vector<std::vector<std::pair<Instant, size_t>>> entries(flows);
    for (size_t i = 0; i < flows; ++i)
      for (Instant at = kStart; at < kStart + milliseconds(200);
           at += Duration(static_cast<int64_t>(rng.below(40'000'000)))) {
        const size_t size = 1 + rng.below(rng.below(2) == 0 ? 200 : 20'000);
        entries[i].emplace_back(at, size);
        line.enter(ids[i], size, at);
      }
    // Byte by byte.
    std::vector<size_t> next(flows), waiting(flows), naive(flows), passed(flows);
    std::vector<std::vector<SharedLine::Passed>> taken(flows);
    size_t turn = 0, longest = 0;
    for (Instant now = kStart; now < kStart + milliseconds(300); now += kByte) {
      for (size_t i = 0; i < flows; ++i)
        while (next[i] < entries[i].size() && entries[i][next[i]].first <= now)
          waiting[i] += entries[i][next[i]++].second;
      for (size_t tries = 0; tries < flows; ++tries) {
        turn = (turn + 1) % flows;
        if (waiting[turn] == 0) continue;
        --waiting[turn];
        ++naive[turn];
        break;
      }
      if ((now - kStart) % milliseconds(1) != Duration::zero()) continue;
      size_t all = 0, all_naive = 0;
      for (size_t i = 0; i < flows; ++i) {
        for (const auto& each : line.take(ids[i], now)) taken[i].push_back(each);
        passed[i] = by(taken[i], now);
        all += passed[i];
        all_naive += naive[i];
        const auto apart = static_cast<double>(passed[i]) - static_cast<double>(naive[i]);
        longest = std::max(longest, static_cast<size_t>(std::abs(apart)));
      }
      ASSERT_NEAR(static_cast<double>(all), static_cast<double>(all_naive), kSegmentSize + 1.0);
    }
    EXPECT_LE(longest, flows * kSegmentSize);
  }
}

TEST(SharedLine, NextIsWhenMoreHasPassed) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    SharedLine line(1e6);
    std::vector<SharedLine::Flow> flows{line.add(), line.add(), line.add()};
    std::vector<size_t> left;
    for (const auto flow : flows) {
      left.push_back(1 + rng.below(100'000));
      line.enter(flow, left.back(), kStart);
    }
    // Each looks when it was told to, and finds more: the others may have worked it out before.
    Instant now = kStart;
    for (int turns = 0; std::any_of(left.begin(), left.end(), [](size_t size) { return size > 0; });
         ++turns) {
      ASSERT_LT(turns, 1000);
      const size_t i = rng.below(flows.size());
      const auto next = line.next(flows[i]);
      ASSERT_EQ(next.has_value(), left[i] > 0);
      if (!next) continue;
      now = std::max(now, *next);
      const size_t size = sum(line.take(flows[i], now));
      ASSERT_GT(size, 0u);
      left[i] -= size;
    }
    EXPECT_LE(now, kStart + milliseconds(302));
  }
}

}  // namespace
}  // namespace weft::net
