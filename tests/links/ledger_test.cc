#include <gtest/gtest.h>

#include <vector>

#include "peer/machine/link_ledger.h"

namespace weft::peer {
namespace {

using Ledger = LinkLedger<int>;

std::vector<int> kept(const Ledger& ledger) {
  std::vector<int> frames;
  ledger.each_kept([&](int frame) { frames.push_back(frame); });
  return frames;
}

TEST(LinkLedger, KeepsWhatWasNotAcknowledged) {
  Ledger ledger;
  for (int frame = 1; frame <= 5; ++frame) ASSERT_TRUE(ledger.keep(frame, 10));
  ASSERT_TRUE(ledger.acknowledged(3));
  EXPECT_EQ(kept(ledger), (std::vector{4, 5}));
  EXPECT_EQ(ledger.kept_bytes(), 20u);
  ASSERT_TRUE(ledger.acknowledged(5));
  EXPECT_EQ(ledger.kept_frames(), 0u);
}

TEST(LinkLedger, ANewConnectionTakesUpWhereTheOtherSideIs) {
  Ledger ledger;
  for (int frame = 1; frame <= 5; ++frame) ASSERT_TRUE(ledger.keep(frame, 10));
  ASSERT_TRUE(ledger.resume(2));
  EXPECT_EQ(kept(ledger), (std::vector{3, 4, 5}));
  ASSERT_TRUE(ledger.resume(2));
  EXPECT_EQ(kept(ledger), (std::vector{3, 4, 5}));
}

TEST(LinkLedger, AnAcknowledgementThatCameLateChangesNothing) {
  Ledger ledger;
  for (int frame = 1; frame <= 5; ++frame) ASSERT_TRUE(ledger.keep(frame, 10));
  ASSERT_TRUE(ledger.acknowledged(4));
  ASSERT_TRUE(ledger.acknowledged(2));
  EXPECT_EQ(kept(ledger), (std::vector{5}));
}

TEST(LinkLedger, ACountOfMoreThanWasSentIsRefused) {
  Ledger ledger;
  ASSERT_TRUE(ledger.keep(1, 10));
  EXPECT_EQ(ledger.acknowledged(2).error().code, ErrorCode::OutOfRange);
  EXPECT_EQ(ledger.resume(2).error().code, ErrorCode::OutOfRange);
  EXPECT_EQ(kept(ledger), (std::vector{1}));
}

TEST(LinkLedger, ASideThatHasForgottenIsRefused) {
  Ledger ledger;
  for (int frame = 1; frame <= 3; ++frame) ASSERT_TRUE(ledger.keep(frame, 10));
  ASSERT_TRUE(ledger.acknowledged(2));
  EXPECT_EQ(ledger.resume(1).error().code, ErrorCode::OutOfRange);
  EXPECT_EQ(ledger.resume(0).error().code, ErrorCode::OutOfRange);
  EXPECT_EQ(kept(ledger), (std::vector{3}));
}

TEST(LinkLedger, WhatIsKeptIsBounded) {
  Ledger ledger({.kept_bytes_max = 25});
  ASSERT_TRUE(ledger.keep(1, 10));
  ASSERT_TRUE(ledger.keep(2, 15));
  EXPECT_EQ(ledger.keep(3, 1).error().code, ErrorCode::ResourceExhausted);
  EXPECT_EQ(ledger.sent(), 2u);
  ASSERT_TRUE(ledger.acknowledged(1));
  EXPECT_TRUE(ledger.keep(3, 10));
}

TEST(LinkReceipts, WhatComesInAnotherOrderIsToldUpToTheFirstThatIsMissing) {
  LinkReceipts receipts({.ack_frames = 3, .ack_bytes = 1000});
  EXPECT_FALSE(receipts.count_received(2, 10));
  EXPECT_FALSE(receipts.count_received(1, 10));
  EXPECT_FALSE(receipts.count_received(4, 10));
  EXPECT_EQ(receipts.tell_received(), 0u);
  EXPECT_TRUE(receipts.count_received(0, 10)) << "three are whole with it";
  EXPECT_EQ(receipts.tell_received(), 3u);
  for (const uint64_t number : {0u, 1u, 2u, 4u}) EXPECT_TRUE(receipts.has_received(number));
  for (const uint64_t number : {3u, 5u}) EXPECT_FALSE(receipts.has_received(number));
  EXPECT_EQ(receipts.received_beyond(), 1u);
  EXPECT_FALSE(receipts.count_received(3, 10));
  EXPECT_EQ(receipts.received(), 5u);
  EXPECT_EQ(receipts.received_beyond(), 0u);
}

TEST(LinkReceipts, AcknowledgesAfterSoManyFramesOrBytes) {
  LinkReceipts ledger({.ack_frames = 3, .ack_bytes = 100});
  EXPECT_FALSE(ledger.count_received(1));
  EXPECT_FALSE(ledger.count_received(1));
  EXPECT_TRUE(ledger.count_received(1));
  EXPECT_EQ(ledger.tell_received(), 3u);
  EXPECT_FALSE(ledger.count_received(99));
  EXPECT_TRUE(ledger.count_received(1));
  EXPECT_EQ(ledger.tell_received(), 5u);
}

}  // namespace
}  // namespace weft::peer
