#include "peer/service/pacer.h"

#include <gtest/gtest.h>

namespace weft::peer {
namespace {

using std::chrono::milliseconds;

// Pieces of 1,000 bytes at 100,000 a second, `late` after the time that the pacer names: those of ten
// seconds.
uint64_t pieces_in_ten_seconds(Duration late) {
  Pacer pacer;
  const Instant start = Instant{} + std::chrono::hours(1);
  Instant now = start;
  uint64_t pieces = 0;
  while (now < start + std::chrono::seconds(10)) {
    if (const Duration wait = pacer.wait(now); wait > Duration{}) {
      now += wait + late;
      continue;
    }
    pacer.take(now, 1000, 100'000);
    ++pieces;
  }
  return pieces;
}

TEST(Pacer, CarriesTheRateAlsoWhenItsTimerComesLate) {
  EXPECT_NEAR(static_cast<double>(pieces_in_ten_seconds({})), 1000, 15);
  EXPECT_NEAR(static_cast<double>(pieces_in_ten_seconds(milliseconds(60))), 1000, 15);
  EXPECT_LT(pieces_in_ten_seconds(milliseconds(500)), 500u)
      << "what was not used long ago is not made up for";
}

}  // namespace
}  // namespace weft::peer
