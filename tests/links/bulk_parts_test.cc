// What bulk transfers are made of: the bytes of a blob that is put, and microbatches that were asked for.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/rng.h"
#include "peer/service/bulk.h"
#include "peer/service/microbatch_requests.h"
#include "peer/service/put_body.h"

namespace weft::peer {
namespace {

std::vector<std::byte> drawn(size_t size, uint64_t seed) {
  Rng rng(seed, 0);
  std::vector<std::byte> bytes(size);
  for (std::byte& each : bytes) each = static_cast<std::byte>(rng.below(4));  // so that packing helps
  return bytes;
}

net::SharedBytes shared(const std::vector<std::byte>& bytes) {
  const auto kept = std::make_shared<const std::vector<std::byte>>(bytes);
  return {kept, *kept};
}

void append(std::vector<std::byte>& all, std::span<const std::byte> more) {
  all.insert(all.end(), more.begin(), more.end());
}

TEST(PutBody, GivesTheBytesOnceInPiecesOfAnySize) {
  const auto bytes = drawn(100'000, 1);
  Rng rng(5, 0);
  PutBody body;
  body.bytes = shared(bytes);
  std::vector<std::byte> all;
  while (!body.is_sent()) append(all, body.next(std::min(body.next_size(), 1 + rng.below(9000))).bytes);
  EXPECT_EQ(all, bytes);
  body.begin_again();
  EXPECT_EQ(body.next_size(), bytes.size());
}

void pack_and_unpack(bool has_base) {
  const auto bytes = drawn(storage::kPackedUnit * 2 + 777, 1), base = drawn(bytes.size(), 2);
  Rng rng(6, 0);
  storage::Packer packer;
  PutBody body;
  body.bytes = shared(bytes);
  if (has_base) body.base = shared(base);
  storage::Unpacker unpacker(bytes.size(),
                             has_base ? std::span<const std::byte>(base) : std::span<const std::byte>());
  std::vector<std::byte> all;
  size_t sent = 0;
  while (!body.is_sent()) {
    body.pack_next(packer);
    const auto piece = body.next(std::min(body.next_size(), 1 + rng.below(50'000)));
    sent += piece.bytes.size();
    ASSERT_TRUE(unpacker.take(piece.bytes, [&](std::span<const std::byte> unpacked) -> Status {
      append(all, unpacked);
      return {};
    }));
  }
  EXPECT_EQ(all, bytes);
  EXPECT_LT(sent, bytes.size());
  EXPECT_EQ(body.base.owner, nullptr) << "it is not needed any more";
}

TEST(PutBody, PacksEachUnitAsItsTurnComes) { pack_and_unpack(/*has_base=*/false); }
TEST(PutBody, PacksOnABase) { pack_and_unpack(/*has_base=*/true); }

class MicrobatchRequestsTest : public testing::Test {
 protected:
  void ask(uint64_t number, std::vector<dag::TensorSpec> specs = {}) {
    proto::GetMicrobatch request;
    request.request = number;
    request.inputs = {"x", "y"};
    requests_.ask(request, std::move(specs),
                  [this](Result<MicrobatchData> data) { done_ = std::move(data); });
  }
  static ReceivedTensor tensor(uint32_t edge, int64_t size) {
    const dag::TensorSpec spec{dag::DType::U8, {size}};
    return {{.edge = edge, .spec = spec}, dag::Tensor(spec)};
  }
  Result<net::PayloadPlace> place(uint32_t edge, int64_t size) {
    const ReceivedTensor coming = tensor(edge, size);
    const auto frame = tensor_frame(coming.header, coming.payload);
    return requests_.place(frame.payload_size(), frame.head);
  }

  MicrobatchRequests requests_;
  std::optional<Result<MicrobatchData>> done_;
};

TEST_F(MicrobatchRequestsTest, IsDoneOnceAllItsTensorsAreThere) {
  ask(4);
  ASSERT_TRUE(requests_.on_answer({.request = 4, .sample_position = 12, .valid_count = 3}));
  ASSERT_TRUE(place(1, 5));
  ASSERT_TRUE(requests_.on_tensor(tensor(1, 5)));
  EXPECT_FALSE(done_);
  ASSERT_TRUE(requests_.on_tensor(tensor(0, 6)));
  ASSERT_TRUE(done_ && *done_);
  EXPECT_EQ((*done_)->sample_position, 12u);
  EXPECT_EQ((*done_)->valid_count, 3u);
  EXPECT_EQ((*done_)->tensors.at("x").bytes().size(), 6u);
  EXPECT_EQ((*done_)->tensors.at("y").bytes().size(), 5u);
  EXPECT_EQ(requests_.count(), 0u);
}

TEST_F(MicrobatchRequestsTest, WhatWasNotAskedForIsAnError) {
  EXPECT_FALSE(requests_.on_answer({.request = 4}));
  EXPECT_FALSE(requests_.on_tensor(tensor(0, 1)));
  EXPECT_FALSE(place(0, 1));
  ask(4, {{dag::DType::U8, {8}}, {dag::DType::U8, {9}}});
  EXPECT_FALSE(requests_.on_tensor(tensor(0, 1))) << "before its answer";
  ASSERT_TRUE(requests_.on_answer({.request = 4}));
  EXPECT_FALSE(requests_.on_answer({.request = 4})) << "while its tensors come";
  EXPECT_FALSE(place(2, 1)) << "there is no such input";
  EXPECT_FALSE(place(0, 9)) << "larger than it may be";
  EXPECT_TRUE(place(1, 9));
  EXPECT_FALSE(done_);
}

// Tokens in one byte each, where that is enough.
TEST_F(MicrobatchRequestsTest, WhatComesAsShorterNumbersIsWhatWasAskedFor) {
  const dag::TensorSpec tokens{dag::DType::I64, {3}}, rest{dag::DType::F32, {1}};
  const auto answer = [&](uint64_t number) {
    ask(number, {tokens, rest});
    ASSERT_TRUE(requests_.on_answer({.request = number}));
  };
  answer(4);
  ASSERT_TRUE(place(0, 3));
  ReceivedTensor narrow{{.edge = 0, .spec = {dag::DType::U8, {3}}},
                        dag::from_int64s({dag::DType::U8, {3}}, std::vector<int64_t>{1, 0, 255})};
  ASSERT_TRUE(requests_.on_tensor(narrow));
  ASSERT_TRUE(requests_.on_tensor({{.edge = 1, .spec = rest}, dag::Tensor(rest)}));
  ASSERT_TRUE(done_ && *done_);
  EXPECT_EQ((*done_)->tensors.at("x").spec(), tokens);
  EXPECT_EQ(dag::to_int64s((*done_)->tensors.at("x")), (std::vector<int64_t>{1, 0, 255}));
  for (const dag::TensorSpec& wrong :
       {dag::TensorSpec{dag::DType::U8, {4}}, {dag::DType::F32, {3}}, {dag::DType::U32, {3}}}) {
    answer(5);
    EXPECT_FALSE(requests_.on_tensor({{.edge = 0, .spec = wrong}, dag::Tensor(wrong)}));
    requests_.fail_all({ErrorCode::Cancelled, "the connection ends"});
  }
}

TEST_F(MicrobatchRequestsTest, OneThatIsRefusedOrLostIsToldOnce) {
  ask(4);
  ASSERT_TRUE(requests_.on_answer({.request = 4, .code = ErrorCode::NotFound, .message = "no such feed"}));
  ASSERT_TRUE(done_);
  EXPECT_EQ(done_->error().code, ErrorCode::NotFound);
  done_.reset();
  ask(5);
  ASSERT_TRUE(requests_.on_answer({.request = 5}));
  requests_.fail_all({ErrorCode::Unavailable, "gone"});
  ASSERT_TRUE(done_);
  EXPECT_EQ(done_->error().code, ErrorCode::Unavailable);
  EXPECT_EQ(requests_.count(), 0u);
  ask(6);
  EXPECT_TRUE(requests_.on_answer({.request = 6})) << "nothing is on its way any more";
}

}  // namespace
}  // namespace weft::peer
