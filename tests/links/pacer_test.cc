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
    if (const Duration wait = pacer.wait(now, 100'000); wait > Duration{}) {
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

// What copies and tensors carry in ten seconds on a line of 1 MB/s of which each has an equal part while it
// waits: a tensor of 20 kB every `interval`, and copies that may go at `rate`, told of the line every
// millisecond. Pieces of 1 kB.
struct Carried {
  uint64_t copies = 0, tensors = 0;
  Duration longest{};  // that a tensor took
};
Carried carried_in_ten_seconds(Duration interval, uint64_t rate) {
  constexpr uint64_t kTensor = 20'000;
  CopyPacer pacer;
  const Instant start = Instant{} + std::chrono::hours(1);
  Carried carried;
  uint64_t copy = 0, tensor = 0;
  Instant next_tensor = start, next_look = start, tensor_at{};
  bool turn = false;
  for (Instant now = start; now < start + std::chrono::seconds(10); now += milliseconds(1)) {
    if (now >= next_tensor && tensor == 0) {
      tensor = kTensor;
      tensor_at = now;
      next_tensor = std::max(next_tensor + interval, now);
    }
    if (now >= next_look && copy == 0) {
      const CopyPacer::Line line{.unsent = copy, .urgent = tensor > 0};
      if (const Duration wait = pacer.wait(now, rate, line); wait > Duration{})
        next_look = now + wait;
      else
        copy = pacer.take(now, 1 << 20, rate, line);
    }
    turn = copy > 0 && tensor > 0 ? !turn : tensor > 0;
    uint64_t& goes = turn ? tensor : copy;
    const uint64_t piece = std::min<uint64_t>(goes, 1000);
    goes -= piece;
    (turn ? carried.tensors : carried.copies) += piece;
    if (turn && tensor == 0) carried.longest = std::max<Duration>(carried.longest, now - tensor_at);
  }
  return carried;
}

TEST(CopyPacer, CopiesTakeWhatTensorsLeave) {
  const Carried idle = carried_in_ten_seconds(std::chrono::hours(1), 800'000);
  EXPECT_GT(idle.copies, 7'000'000u) << "the rate, of a line that nobody else wants";
  const Carried half = carried_in_ten_seconds(milliseconds(40), 800'000);
  EXPECT_GT(half.tensors, 4'900'000u);
  EXPECT_GT(half.copies, 2'500'000u);
  EXPECT_LT(half.longest, milliseconds(35)) << "a piece was before it, and few between its own";
}

TEST(CopyPacer, SmallBlobsGoTogether) {
  CopyPacer pacer;
  const Instant now = Instant{} + std::chrono::hours(1);
  for (int blob = 0; blob < 40; ++blob) {
    const CopyPacer::Line line{.unsent = static_cast<size_t>(100 * blob), .urgent = true};
    ASSERT_EQ(pacer.wait(now, 800'000, line), Duration{}) << blob;
    EXPECT_EQ(pacer.take(now, 100, 800'000, line), 100u);
  }
}

TEST(CopyPacer, OfALineThatTensorsFillCopiesTakeATwentiethAtMost) {
  for (const uint64_t rate : {800'000u, 12'500'000u}) {  // known, and much more than there is
    const Carried full = carried_in_ten_seconds(milliseconds(20), rate);
    EXPECT_GT(full.tensors, 9'400'000u) << rate;
    EXPECT_GT(full.copies, 100'000u) << "they go on, all the same";
  }
}

}  // namespace
}  // namespace weft::peer
