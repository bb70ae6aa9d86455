// Which blobs collection must leave, and what counts against a key.
#include <gtest/gtest.h>

#include "broker/service/blob_leases.h"
#include "broker/service/egress.h"
#include "tests/support/keys.h"

namespace weft::broker {
namespace {

using std::chrono::hours;
using std::chrono::minutes;

Digest blob(uint8_t n) {
  Digest digest;
  digest.bytes[1] = n;
  return digest;
}
using test::key;

Instant at(Duration since) { return Instant{} + hours(1000) + since; }

const auto kAllThere = [](const Digest&) { return true; };
const auto kNoneThere = [](const Digest&) { return false; };

TEST(Leases, LastAsLongAsWhoHasThemIsThereAndAnHourLonger) {
  BlobLeases leases;
  leases.connect(key(1));
  EXPECT_TRUE(leases.put(key(1), blob(1), 10, at(hours(0)), kAllThere));
  leases.ask(key(1), blob(2), at(hours(3)));
  EXPECT_EQ(leases.held(at(hours(5))), (std::set{blob(1), blob(2)})) << "a slow upload of the rest";
  leases.connect(key(1));
  leases.disconnect(key(1), at(hours(6)));
  EXPECT_EQ(leases.held(at(hours(8))).size(), 2u) << "its other connection is there";
  leases.disconnect(key(1), at(hours(8)));
  EXPECT_EQ(leases.held(at(hours(8) + minutes(59))).size(), 2u);
  EXPECT_TRUE(leases.held(at(hours(9) + minutes(1))).empty());
  EXPECT_EQ(leases.use_of(key(1)).blobs, 0u);
}

TEST(Leases, EndAfterADayForWhoStays) {
  BlobLeases leases;
  leases.connect(key(1));
  EXPECT_TRUE(leases.put(key(1), blob(1), 10, at(hours(0)), kAllThere));
  EXPECT_TRUE(leases.put(key(1), blob(2), 10, at(hours(0)), kAllThere));
  leases.ask(key(1), blob(2), at(hours(20)));
  EXPECT_EQ(leases.held(at(hours(25))), std::set{blob(2)});
  EXPECT_EQ(leases.use_of(key(1)).bytes, 10u);
}

TEST(Leases, WhatIsReferredToCountsForNobody) {
  BlobLeases leases({.bytes = 100, .blobs = 10});
  for (const uint8_t who : {1, 2}) {
    leases.connect(key(who));
    EXPECT_TRUE(leases.put(key(who), blob(1), 60, at(hours(0)), kAllThere));
  }
  EXPECT_FALSE(leases.put(key(1), blob(2), 60, at(hours(0)), kAllThere));
  leases.refer(std::set{blob(1), blob(7)});
  EXPECT_EQ(leases.use_of(key(1)).bytes, 0u);
  EXPECT_EQ(leases.use_of(key(2)).bytes, 0u);
  EXPECT_TRUE(leases.put(key(1), blob(2), 60, at(hours(0)), kAllThere));
  EXPECT_EQ(leases.held(at(hours(1))), std::set{blob(2)});
}

TEST(Quota, IsOfEachKeyInBytesAndInBlobs) {
  BlobLeases leases({.bytes = 100, .blobs = 3});
  EXPECT_TRUE(leases.put(key(1), blob(1), 100, at(hours(0)), kAllThere));
  EXPECT_TRUE(leases.put(key(1), blob(1), 100, at(hours(0)), kAllThere)) << "the same again";
  const Status full = leases.put(key(1), blob(2), 1, at(hours(0)), kAllThere);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, ErrorCode::ResourceExhausted);
  EXPECT_NE(full.error().message.find("100 bytes"), std::string::npos) << full.error().message;
  EXPECT_FALSE(leases.put(key(1), blob(3), UINT64_MAX, at(hours(0)), kAllThere));
  for (const uint8_t n : {1, 2, 3}) EXPECT_TRUE(leases.put(key(2), blob(n), 1, at(hours(0)), kAllThere));
  EXPECT_FALSE(leases.put(key(2), blob(4), 0, at(hours(0)), kAllThere));
  leases.ask(key(2), blob(5), at(hours(0)));
  EXPECT_EQ(leases.use_of(key(2)).blobs, 3u);
  leases.drop(key(2), blob(1));
  EXPECT_TRUE(leases.put(key(2), blob(4), 0, at(hours(0)), kAllThere));
}

TEST(Quota, CountsWhatIsStillThere) {
  BlobLeases leases({.bytes = 100, .blobs = 3});
  EXPECT_TRUE(leases.put(key(1), blob(1), 90, at(hours(0)), kAllThere));
  EXPECT_TRUE(leases.put(key(1), blob(2), 90, at(hours(0)), kNoneThere)) << "the first has gone meanwhile";
  EXPECT_EQ(leases.use_of(key(1)).bytes, 90u);
  EXPECT_FALSE(leases.put(key(1), blob(3), 90, at(std::chrono::seconds(30)), kNoneThere)) << "looked lately";
  EXPECT_TRUE(leases.put(key(1), blob(3), 90, at(minutes(2)), kNoneThere));
}

// Whoever loads does not wait; who stands by waits for what they took.
TEST(Egress, WhoLoadsGoesFirstAndCounts) {
  using std::chrono::milliseconds;
  Egress egress(1'000'000);
  Instant now = at(hours(0));
  EXPECT_EQ(egress.wait(now), Duration{});
  uint64_t spares = 0;
  for (int ms = 0; ms < 10'000; ++ms, now += milliseconds(1)) {
    if (ms == 5000)
      for (int piece = 0; piece < 10; ++piece) egress.take(now, 100'000);  // a load of a second
    if (egress.wait(now) > Duration{}) continue;
    egress.take(now, 10'000);
    spares += 10'000;
  }
  EXPECT_NEAR(static_cast<double>(spares), 9e6, 0.3e6);
  for (int piece = 0; piece < 1000; ++piece) egress.take(now, 1'000'000);
  EXPECT_LE(egress.wait(now), std::chrono::seconds(2)) << "nobody waits for ever";
  Egress unlimited(0);
  unlimited.take(now, UINT64_MAX);
  EXPECT_EQ(unlimited.wait(now), Duration{});
}

}  // namespace
}  // namespace weft::broker
