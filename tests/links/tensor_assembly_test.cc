#include "peer/service/tensor_assembly.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/rng.h"
#include "peer/service/link_queue.h"

namespace weft::peer {
namespace {

constexpr uint32_t kPiece = proto::kPieceSize;

proto::PieceHead piece(uint64_t number, uint32_t offset, uint32_t size) {
  return {.number = number,
          .offset = offset,
          .size = size,
          .header = {.step = number, .spec = {dag::DType::U8, {static_cast<int64_t>(size)}}}};
}
ErrorCode code_of(const Result<TensorAssembly::Begun>& result) {
  EXPECT_FALSE(result.has_value());
  return result ? ErrorCode::NotFound : result.error().code;
}

TEST(TensorAssembly, PiecesInAnyOrderMakeTheTensor) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    TensorAssembly assembly(window_of(0));
    struct Piece {
      proto::PieceHead head;
      std::shared_ptr<std::byte[]> memory{};
    };
    std::vector<std::vector<std::byte>> tensors(5);
    std::vector<Piece> waiting, under_way;
    for (uint64_t number = 0; number < tensors.size(); ++number) {
      const auto size = static_cast<uint32_t>(rng.below(5) == 0 ? 0 : rng.below(4 * kPiece));
      for (uint32_t i = 0; i < size; ++i) tensors[number].push_back(static_cast<std::byte>(i % 251 + number));
      for (uint32_t offset = 0; offset == 0 || offset < size; offset += kPiece)
        waiting.push_back({piece(number, offset, size)});
    }
    size_t came = 0;
    while (!waiting.empty() || !under_way.empty()) {
      auto& from = !waiting.empty() && (under_way.empty() || rng.below(2) == 0) ? waiting : under_way;
      const size_t at = rng.below(from.size());
      Piece one = std::move(from[at]);
      from.erase(from.begin() + static_cast<std::ptrdiff_t>(at));
      if (&from == &waiting) {
        auto begun = assembly.begin(one.head, 0, true);
        ASSERT_TRUE(begun.has_value()) << begun.error().message;
        one.memory = begun->memory;
        under_way.push_back(std::move(one));
        continue;
      }
      const std::vector<std::byte>& bytes = tensors[one.head.number];
      std::copy_n(bytes.begin() + one.head.offset, one.head.piece_size(), one.memory.get());
      const auto tensor = assembly.end(one.head);
      if (!tensor) continue;
      ++came;
      EXPECT_EQ(tensor->header.step, one.head.number);
      EXPECT_TRUE(std::ranges::equal(tensor->payload.bytes(), bytes));
    }
    EXPECT_EQ(came, tensors.size());
    EXPECT_EQ(assembly.tensors(), 0u);
    EXPECT_EQ(assembly.bytes(), 0u);
  }
}

TEST(TensorAssembly, TwiceOrContradictoryIsRefused) {
  TensorAssembly assembly(window_of(0));
  ASSERT_TRUE(assembly.begin(piece(0, kPiece, 3 * kPiece), 0, true));
  EXPECT_EQ(code_of(assembly.begin(piece(0, kPiece, 3 * kPiece), 0, true)), ErrorCode::Corrupted);
  EXPECT_EQ(code_of(assembly.begin(piece(0, 0, 2 * kPiece), 0, true)), ErrorCode::Corrupted);
  proto::PieceHead other = piece(0, 0, 3 * kPiece);
  other.header.edge = 1;
  EXPECT_EQ(code_of(assembly.begin(other, 0, true)), ErrorCode::Corrupted);
  EXPECT_FALSE(assembly.end(piece(0, kPiece, 3 * kPiece)));
  EXPECT_EQ(code_of(assembly.begin(piece(0, kPiece, 3 * kPiece), 0, true)), ErrorCode::Corrupted);
}

TEST(TensorAssembly, NoMoreIsBegunThanFitsTheWindow) {
  TensorAssembly assembly(1000);
  ASSERT_TRUE(assembly.begin(piece(5, 0, 600), 5, true));
  EXPECT_EQ(code_of(assembly.begin(piece(6, 0, 600), 5, true)), ErrorCode::ResourceExhausted);
  EXPECT_TRUE(assembly.begin(piece(7, 0, 400), 5, true));
  EXPECT_EQ(assembly.bytes(), 1000u);
  EXPECT_EQ(code_of(assembly.begin(piece(5 + kBegunMax, 0, 0), 5, true)), ErrorCode::OutOfRange);
  EXPECT_EQ(code_of(assembly.begin(piece(UINT64_MAX, 0, 0), 5, true)), ErrorCode::OutOfRange);
  assembly.clear();
  EXPECT_EQ(assembly.bytes(), 0u);
  EXPECT_EQ(code_of(assembly.begin(piece(6, 0, 5000), 5, true)), ErrorCode::ResourceExhausted);
  EXPECT_EQ(code_of(assembly.begin(piece(5, 0, 5000), 5, false)), ErrorCode::ResourceExhausted)
      << "nobody assigned an edge of that size";
  EXPECT_TRUE(assembly.begin(piece(5, 0, 5000), 5, true)) << "the one that all others wait for";
}

}  // namespace
}  // namespace weft::peer
