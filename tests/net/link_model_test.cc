#include "net/model/link_model.h"

#include <gtest/gtest.h>

#include <vector>

namespace weft::net {
namespace {

using std::chrono::milliseconds;

std::vector<Duration> arrivals(const ShapeDirection& direction, uint64_t seed, int count, Duration apart) {
  LinkModel model(direction, 2 * direction.delay, seed, 0);
  std::vector<Duration> out;
  const Instant start{std::chrono::hours(5)};
  for (int i = 0; i < count; ++i) out.push_back(model.enter(kSegmentSize, start + i * apart) - start);
  return out;
}

TEST(LinkModel, RateIsExactInTheLongRun) {
  for (const double rate : {1e6, 12.5e6, 1.25e9}) {
    const auto out = arrivals({.bytes_per_second = rate}, 1, 100'000, Duration::zero());
    const double expected = 100'000.0 * kSegmentSize / rate;
    EXPECT_NEAR(seconds(out.back()), expected, expected * 1e-3);
  }
}

TEST(LinkModel, AnIdleLinkGivesBackOnlyItsBurst) {
  LinkModel model({.bytes_per_second = 1e6}, {}, 1, 0);
  const Instant start{};
  (void)model.enter(1, start);
  const Instant later = start + std::chrono::hours(1);
  Instant out{};
  for (int i = 0; i < 1000; ++i) out = model.enter(1000, later);
  EXPECT_GE(out - later, milliseconds(990));
  EXPECT_LE(out - later, milliseconds(1000));
}

TEST(LinkModel, DelayIsAdded) {
  const auto out = arrivals({.delay = milliseconds(25)}, 1, 10, milliseconds(1));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], milliseconds(25 + i));
}

TEST(LinkModel, JitterStaysInItsBoundsAndKeepsTheOrder) {
  const ShapeDirection direction{.delay = milliseconds(10), .jitter = milliseconds(5)};
  const auto out = arrivals(direction, 3, 10'000, milliseconds(20));
  Duration sum{};
  for (int i = 0; i < 10'000; ++i) {
    const Duration late = out[static_cast<size_t>(i)] - i * milliseconds(20);
    EXPECT_GE(late, milliseconds(10));
    EXPECT_LT(late, milliseconds(15));
    sum += late;
  }
  EXPECT_NEAR(seconds(sum) / 10'000, 0.0125, 0.0002);
  const auto crowded = arrivals(direction, 3, 10'000, std::chrono::microseconds(10));
  EXPECT_TRUE(std::is_sorted(crowded.begin(), crowded.end()));
}

TEST(LinkModel, SameSeedSameSequence) {
  const ShapeDirection direction{
      .bytes_per_second = 1e7, .delay = milliseconds(10), .jitter = milliseconds(5), .loss = 0.05};
  const auto first = arrivals(direction, 42, 5000, std::chrono::microseconds(150));
  EXPECT_EQ(first, arrivals(direction, 42, 5000, std::chrono::microseconds(150)));
  EXPECT_NE(first, arrivals(direction, 43, 5000, std::chrono::microseconds(150)));
}

TEST(LinkModel, LostSegmentsComeARoundTripLater) {
  const auto out = arrivals({.delay = milliseconds(10), .loss = 0.1}, 8, 10'000, std::chrono::seconds(10));
  int lost = 0;
  for (int i = 0; i < 10'000; ++i) {
    const Duration late = out[static_cast<size_t>(i)] - i * Duration(std::chrono::seconds(10));
    EXPECT_EQ((late - Duration(milliseconds(10))) % Duration(milliseconds(20)), Duration::zero());
    if (late > milliseconds(10)) ++lost;
  }
  EXPECT_NEAR(lost, 1000, 120);
}

// Rate, delay, jitter and loss, against the same rules written naively: each time in seconds.
TEST(LinkModel, AgreesWithANaiveOneAtRandomValues) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 9);
    const ShapeDirection direction{
        .bytes_per_second = rng.below(4) == 0 ? 0 : 1e4 + rng.uniform() * 1e8,
        .delay = milliseconds(rng.below(200)),
        .jitter = rng.below(2) == 0 ? Duration::zero() : Duration(milliseconds(1 + rng.below(20))),
        .loss = rng.below(2) == 0 ? 0 : rng.uniform() * 0.2};
    const Duration repair = milliseconds(rng.below(300));
    LinkModel model(direction, repair, seed, 1);
    Rng draws(seed, 1);
    const Instant start{std::chrono::hours(5)};
    Duration at{};
    double busy_until = 0, last = 0;
    for (int i = 0; i < 1000; ++i) {
      at += Duration(static_cast<int64_t>(rng.below(2) * rng.below(400'000'000)));
      const size_t size = 1 + rng.below(kSegmentSize);
      double earliest = seconds(at);  // without the burst
      if (direction.bytes_per_second > 0) {
        busy_until =
            std::max(busy_until, seconds(at)) + static_cast<double>(size) / direction.bytes_per_second;
        earliest = busy_until;
      }
      double late = seconds(direction.delay);
      if (direction.jitter > Duration::zero())
        late += 1e-9 * static_cast<double>(draws.below(static_cast<uint64_t>(direction.jitter.count())));
      if (direction.loss > 0)
        for (int losses = 0; losses < 8 && draws.next_u32() < direction.loss * 0x1p32; ++losses)
          late += seconds(repair);
      last = std::max(last, earliest + late);
      const double got = seconds(model.enter(size, start + at) - start);
      EXPECT_LE(got, last + 1e-6);
      // A burst of 32 KiB or 2 ms at most comes earlier.
      const double burst =
          direction.bytes_per_second > 0 ? std::max(2e-3, 4096 / direction.bytes_per_second) : 0;
      EXPECT_GE(got, last - burst - 1e-6);
    }
  }
}

TEST(LinkModel, OddNumbersAreHarmless) {
  for (const double rate : {-1.0, 0.0, std::numeric_limits<double>::quiet_NaN(), 1e300,
                            std::numeric_limits<double>::infinity()}) {
    const auto out =
        arrivals({.bytes_per_second = rate, .delay = milliseconds(-5), .loss = 2}, 1, 10, milliseconds(1));
    EXPECT_GE(out.back(), Duration::zero());
  }
  EXPECT_TRUE(LinkModel({}, {}, 1, 0).is_transparent());
}

TEST(LinkModel, HoldsWhatTheLinkHoldsAndABoundedQueue) {
  EXPECT_EQ(LinkModel({.bytes_per_second = 1e5}, {}, 1, 0).size_max(), size_t{256} << 10);
  const size_t size =
      LinkModel({.bytes_per_second = 12.5e6, .delay = milliseconds(100)}, {}, 1, 0).size_max();
  EXPECT_NEAR(static_cast<double>(size), 12.5e6 * 0.3, 10);
  EXPECT_LE(LinkModel({.bytes_per_second = 1e12, .delay = milliseconds(100)}, {}, 1, 0).size_max(),
            size_t{64} << 20);
}

}  // namespace
}  // namespace weft::net
