// Payloads that the receiver places: into which memory they come, and what is refused before any is taken.
#include <gtest/gtest.h>

#include <cstring>
#include <new>

#include "tests/net/meeting.h"

namespace weft::net::test {
namespace {

constexpr size_t kHeadSize = 8;
constexpr uint8_t kPlaced = 2;

using Head = std::function<Result<PayloadPlace>(uint8_t, size_t, std::span<const std::byte>)>;

// A client that sends, and a server that places.
class PlacementTest : public ::testing::Test {
 protected:
  void join(Head on_head, const ConnectionLimits& limits = {.frame_size_max = 256 << 20}) {
    const auto outcome = meeting_.begin();
    ASSERT_TRUE(meeting_.run_until([&] { return outcome->is_done() && meeting_.accepted.size() == 1; }));
    ASSERT_TRUE(outcome->is_connected()) << outcome->message();
    client_.connection = **outcome->result;
    client_.start();
    server_.connection = std::move(meeting_.accepted[0]);
    meeting_.accepted.clear();
    server_.connection->set_limits(limits);
    server_.connection->start(
        {.on_frame = [this](InFrame frame) { server_.frames.push_back(std::move(frame)); },
         .on_closed =
             [this](const Error& error) {
               server_.closed = error;
               ++server_.closed_count;
             },
         .on_head = std::move(on_head)});
  }
  bool run_until(const std::function<bool()>& done) { return meeting_.run_until(done); }

  Meeting meeting_;
  Side client_, server_;
};

TEST_F(PlacementTest, BytesComeIntoTheMemoryThatWasChosen) {
  std::vector<std::byte*> chosen;
  std::vector<std::vector<std::byte>> heads;
  join([&](uint8_t kind, size_t size, std::span<const std::byte> head) -> Result<PayloadPlace> {
    heads.emplace_back(head.begin(), head.end());
    if (kind != kPlaced || size < kHeadSize) return PayloadPlace{};
    const PayloadPlace placement{kHeadSize, std::make_shared<std::byte[]>(size - kHeadSize)};
    chosen.push_back(placement.body.get());
    return placement;
  });
  std::vector<std::vector<std::byte>> sent;
  for (const size_t size : {0, 1, 8, 9, 255, 256, 257, 300, 16383, 16384, 16385, 1 << 20, 20 << 20, 40})
    for (const uint8_t kind : {kPlaced, uint8_t{1}}) {
      sent.push_back(random_bytes(sent.size(), size));
      client_.connection->send(make_frame(kind, {}, sent.back()));
    }
  ASSERT_TRUE(run_until([&] { return server_.frames.size() == sent.size() || server_.closed; }));
  ASSERT_FALSE(server_.closed) << server_.closed->message;
  size_t placed = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    SCOPED_TRACE("frame " + std::to_string(i) + " of " + std::to_string(sent[i].size()) + " bytes");
    const InFrame& frame = server_.frames[i];
    const auto first = std::span(sent[i]).first(std::min(sent[i].size(), kFrameHeadSize));
    EXPECT_TRUE(std::ranges::equal(heads[i], first));
    ASSERT_EQ(frame.size(), sent[i].size());
    ASSERT_EQ(frame.body != nullptr, frame.kind == kPlaced && sent[i].size() >= kHeadSize);
    if (!frame.body) {
      EXPECT_EQ(to_vector(frame), sent[i]);
      continue;
    }
    EXPECT_EQ(frame.body.get(), chosen[placed++]);
    ASSERT_EQ(frame.payload.size(), kHeadSize);
    EXPECT_EQ(std::memcmp(frame.payload.span().data(), sent[i].data(), kHeadSize), 0);
    EXPECT_EQ(std::memcmp(frame.body.get(), sent[i].data() + kHeadSize, frame.body_size), 0);
  }
}

TEST_F(PlacementTest, ARefusedHeadIsWhyTheConnectionEnds) {
  int asked = 0;
  join([&](uint8_t, size_t, std::span<const std::byte>) -> Result<PayloadPlace> {
    ++asked;
    return fail(ErrorCode::InvalidArgument, "no such edge comes here");
  });
  client_.connection->send(make_frame(kPlaced, {}, random_bytes(1, 64 << 20)));
  client_.connection->send(make_frame(kPlaced, {}, random_bytes(1, 10)));
  ASSERT_TRUE(run_until([&] { return server_.closed && client_.closed; }));
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(server_.frames.empty());
  EXPECT_EQ(server_.closed_count, 1);
  EXPECT_EQ(server_.closed->code, ErrorCode::InvalidArgument);
  EXPECT_NE(server_.closed->message.find("no such edge comes here"), std::string::npos)
      << server_.closed->message;
  EXPECT_LT(server_.connection->stats().bytes_received, 1u << 20) << "it read on after the refusal";
}

TEST_F(PlacementTest, AFrameBeyondTheLimitIsRefusedUnseen) {
  int asked = 0;
  join(
      [&](uint8_t, size_t, std::span<const std::byte>) -> Result<PayloadPlace> {
        ++asked;
        return PayloadPlace{};
      },
      {.frame_size_max = 1 << 20});
  client_.connection->send(make_frame(kPlaced, {}, random_bytes(1, (1 << 20) + 1)));
  ASSERT_TRUE(run_until([&] { return server_.closed.has_value(); }));
  EXPECT_EQ(server_.closed->code, ErrorCode::ResourceExhausted);
  EXPECT_EQ(asked, 0);
}

TEST_F(PlacementTest, NoMemoryForThePlaceEndsTheConnectionAndNothingElse) {
  join([&](uint8_t, size_t, std::span<const std::byte>) -> Result<PayloadPlace> { throw std::bad_alloc(); });
  client_.connection->send(make_frame(kPlaced, {}, random_bytes(1, 1000)));
  ASSERT_TRUE(run_until([&] { return server_.closed.has_value(); }));
  EXPECT_EQ(server_.closed->code, ErrorCode::ResourceExhausted);
}

TEST_F(PlacementTest, AFrameThatIsCutOffIsNotGivenAndItsMemoryGoes) {
  std::weak_ptr<std::byte[]> memory;
  join([&](uint8_t, size_t size, std::span<const std::byte>) -> Result<PayloadPlace> {
    const PayloadPlace placement{kHeadSize, std::make_shared<std::byte[]>(size - kHeadSize)};
    memory = placement.body;
    return placement;
  });
  client_.connection->send(make_frame(kPlaced, {}, random_bytes(1, 64 << 20)));
  ASSERT_TRUE(run_until([&] { return !memory.expired(); }));
  client_.connection.reset();
  ASSERT_TRUE(run_until([&] { return server_.closed.has_value(); }));
  EXPECT_TRUE(server_.frames.empty());
  EXPECT_EQ(server_.closed->code, ErrorCode::Unavailable);
  EXPECT_TRUE(memory.expired());
}

TEST_F(PlacementTest, TheConnectionMayEndInsideOfTheQuestion) {
  for (const bool by_close : {false, true}) {
    client_ = {};
    server_ = {};
    join([&](uint8_t, size_t, std::span<const std::byte>) -> Result<PayloadPlace> {
      if (by_close)
        server_.connection->close();
      else
        server_.connection.reset();
      return PayloadPlace{};
    });
    client_.connection->send(make_frame(kPlaced, {}, random_bytes(1, 1000)));
    ASSERT_TRUE(run_until([&] { return client_.closed.has_value(); }));
    EXPECT_TRUE(server_.frames.empty());
    EXPECT_EQ(server_.closed_count, 0);
  }
}

}  // namespace
}  // namespace weft::net::test
