#include "peer/service/link_queue.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "peer/service/bulk.h"
#include "proto/codec/codec.h"

namespace weft::peer {
namespace {

dag::Tensor tensor_of_bytes(size_t size) {
  return dag::Tensor(dag::TensorSpec{dag::DType::U8, {static_cast<int64_t>(size)}});
}
net::OutFrame frame_of(uint64_t step, size_t size) {
  const dag::Tensor tensor = tensor_of_bytes(size);
  return tensor_frame({.step = step, .spec = tensor.spec()}, tensor);
}
void add(LinkQueue& queue, uint64_t step, size_t size) {
  ASSERT_TRUE(queue.add({.step = step}, frame_of(step, size)));
}
struct Given {
  uint64_t step = 0, number = 0;
  uint32_t offset = 0;
  bool operator==(const Given&) const = default;
};
std::optional<Given> next(LinkQueue& queue) {
  const auto frame = queue.next(/*whole=*/false);
  if (!frame) return std::nullopt;
  const auto start = proto::decode_piece_head(frame->head, frame->payload_size());
  EXPECT_TRUE(start.has_value()) << start.error().message;
  return Given{start->head.header.step, start->head.number, start->head.offset};
}
constexpr uint32_t kPiece = proto::kPieceSize;

TEST(LinkQueue, WhatIsNeededSoonerOvertakesWhatIsUnderWay) {
  LinkQueue queue;
  add(queue, 7, 3 * kPiece);
  EXPECT_EQ(next(queue), (Given{7, 0, 0}));
  add(queue, 3, kPiece + 1);
  EXPECT_EQ(next(queue), (Given{3, 1, 0}));
  EXPECT_EQ(next(queue), (Given{3, 1, kPiece}));
  add(queue, 9, 1);
  EXPECT_EQ(next(queue), (Given{7, 0, kPiece}));
  EXPECT_EQ(next(queue), (Given{7, 0, 2 * kPiece}));
  EXPECT_EQ(next(queue), (Given{9, 2, 0}));
  EXPECT_EQ(next(queue), std::nullopt);
  EXPECT_EQ(queue.unsent_bytes(), 0u);
}

TEST(LinkQueue, WhatIsEquallyUrgentGoesAsItCame) {
  LinkQueue queue;
  for (size_t size = 1; size <= 5; ++size) add(queue, 1, size);
  for (uint64_t number = 0; number < 5; ++number) {
    const auto frame = queue.next(/*whole=*/false);
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->body.bytes.size(), number + 1);
  }
}

TEST(LinkQueue, ATensorOfNoBytesIsOnePiece) {
  LinkQueue queue;
  add(queue, 1, 0);
  EXPECT_EQ(next(queue), (Given{1, 0, 0}));
  EXPECT_EQ(next(queue), std::nullopt);
}

TEST(LinkQueue, ASideWithoutPiecesGetsWholeTensors) {
  LinkQueue queue;
  add(queue, 2, 3 * kPiece);
  add(queue, 1, 5);
  for (const size_t size : {size_t{5}, size_t{3} * kPiece}) {
    const auto frame = queue.next(/*whole=*/true);
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->kind, static_cast<uint8_t>(proto::FrameKind::Tensor));
    EXPECT_EQ(frame->body.bytes.size(), size);
  }
  EXPECT_FALSE(queue.next(true));
}

TEST(LinkQueue, WhatTheOtherSideLacksGoesAgainFromItsBegin) {
  LinkQueue queue;
  for (uint64_t step = 1; step <= 3; ++step) add(queue, step, 2 * kPiece);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(next(queue));
  add(queue, 4, 1);
  ASSERT_TRUE(queue.resume(1));
  std::vector<Given> given;
  while (const auto piece = next(queue)) given.push_back(*piece);
  EXPECT_EQ(given, (std::vector<Given>{{2, 1, 0}, {2, 1, kPiece}, {3, 2, 0}, {3, 2, kPiece}, {4, 3, 0}}));
}

// It had come over the connection that was lost, behind one that had not.
TEST(LinkQueue, WhatIsAcknowledgedWhileItGoesAgainGoesNoFurther) {
  LinkQueue queue;
  add(queue, 1, 3 * kPiece);
  ASSERT_TRUE(next(queue) && next(queue) && next(queue));
  ASSERT_TRUE(queue.resume(0));
  ASSERT_TRUE(next(queue));
  ASSERT_TRUE(queue.acknowledged(1));
  EXPECT_EQ(next(queue), std::nullopt);
  EXPECT_EQ(queue.unsent_bytes(), 0u);
  EXPECT_EQ(queue.begun_bytes(), 0u);
}

TEST(LinkQueue, ACountThatCannotBeIsRefused) {
  LinkQueue queue;
  add(queue, 1, 10);
  EXPECT_EQ(queue.acknowledged(1).error().code, ErrorCode::OutOfRange);
  ASSERT_TRUE(next(queue));
  EXPECT_EQ(queue.resume(2).error().code, ErrorCode::OutOfRange);
  ASSERT_TRUE(queue.acknowledged(1));
  EXPECT_EQ(queue.resume(0).error().code, ErrorCode::OutOfRange);
}

TEST(LinkQueue, NoMoreIsBegunThanTheOtherSideHasToHold) {
  LinkQueue queue({.window_bytes = 1000});
  for (uint64_t step = 1; step <= 4; ++step) add(queue, step, 300);  // and their headers
  ASSERT_TRUE(next(queue) && next(queue));
  EXPECT_EQ(next(queue), std::nullopt);
  ASSERT_TRUE(queue.acknowledged(1));
  EXPECT_EQ(next(queue), (Given{3, 2, 0}));
  EXPECT_EQ(next(queue), std::nullopt);
  ASSERT_TRUE(queue.acknowledged(3));
  EXPECT_EQ(next(queue), (Given{4, 3, 0}));
  ASSERT_TRUE(queue.acknowledged(4));
  add(queue, 5, 5000);  // by itself it may
  EXPECT_EQ(next(queue), (Given{5, 4, 0}));

  LinkQueue small;
  for (uint64_t step = 1; step <= kBegunMax + 1; ++step) add(small, step, 1);
  for (uint64_t i = 0; i < kBegunMax; ++i) ASSERT_TRUE(next(small));
  EXPECT_EQ(next(small), std::nullopt);
}

TEST(LinkQueue, WhatIsKeptIsBounded) {
  LinkQueue queue({.kept_bytes_max = 3000});
  add(queue, 1, 1000);
  add(queue, 2, 1000);
  ASSERT_TRUE(next(queue));
  EXPECT_EQ(queue.add({}, frame_of(3, 1000)).error().code, ErrorCode::ResourceExhausted);
  ASSERT_TRUE(queue.acknowledged(1));
  EXPECT_TRUE(queue.add({}, frame_of(3, 1000)));
}

// Whatever happens in between, all of it is given once since the last resume, or was acknowledged; and what
// is unsent adds up.
TEST(LinkQueue, NothingIsLostInAnyOrderOfEvents) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    LinkQueue queue({.window_bytes = 8 * kPiece});
    std::map<uint64_t, std::map<uint32_t, int>> pieces;  // by number, of this session
    std::map<uint64_t, uint32_t> sizes;
    uint64_t added = 0, acknowledged = 0;
    const auto is_whole = [&](uint64_t number) {
      return pieces[number].size() == std::max<size_t>(1, (sizes[number] + kPiece - 1) / kPiece);
    };
    for (int i = 0; i < 2000 || queue.unsent_bytes() > 0 || acknowledged < added; ++i) {
      ASSERT_LT(i, 20'000);
      const uint64_t event = rng.below(20);
      if (event < 3 && i < 2000) {
        ASSERT_TRUE(queue.add({.step = rng.below(10)}, frame_of(rng.below(1000), rng.below(4 * kPiece))));
        ++added;
      } else if (event == 4 && i < 2000 && rng.below(5) == 0) {
        ASSERT_TRUE(queue.resume(acknowledged));
        pieces.clear();
      } else if (event < 8) {
        uint64_t upto = acknowledged;
        while (pieces.contains(upto) && is_whole(upto)) ++upto;
        acknowledged += rng.below(upto - acknowledged + 1);
        ASSERT_TRUE(queue.acknowledged(acknowledged));
      } else if (const auto frame = queue.next(false)) {
        const auto start = proto::decode_piece_head(frame->head, frame->payload_size());
        ASSERT_TRUE(start.has_value());
        sizes[start->head.number] = start->head.size;
        EXPECT_EQ(++pieces[start->head.number][start->head.offset], 1);
      }
    }
    EXPECT_EQ(queue.begun(), 0u);
  }
}

}  // namespace
}  // namespace weft::peer
