// A neighbour that breaks the protocol of pieces: the link is down with an error that names it, and no memory
// is taken beyond what the assignment's edges justify.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "dag/op_table.h"
#include "net/connection.h"
#include "net/loop.h"
#include "peer/service/bulk.h"
#include "peer/service/link_queue.h"
#include "peer/service/link_service.h"
#include "proto/codec/codec.h"
#include "security/identity.h"

namespace weft::peer::test {
namespace {

constexpr Duration kPatience = std::chrono::seconds(120);  // only a hang reaches it
constexpr uint32_t kPiece = proto::kPieceSize;
const dag::TensorSpec kSpec{dag::DType::F32, {kPiece}};  // four pieces
const auto kSize = static_cast<uint32_t>(kSpec.bytes().value);

proto::StageProgram receives_edge_0() {
  dag::GraphBuilder b(dag::op_table());
  const dag::ValueId x = b.input("x", kSpec);
  b.output("y", b.add(dag::OpKind::Relu, {x}), dag::OutputRole::Prediction);
  proto::StageProgram program;
  program.graph = std::make_shared<const dag::Graph>(b.finish());
  program.receives = {{.edge = 0, .value = x, .stage = 0}};
  return program;
}

proto::TensorHeader header_of(uint64_t step) {
  return {.run = 1, .plan_version = 1, .step = step, .spec = kSpec};
}
net::OutFrame piece_frame(const proto::TensorHeader& header, uint64_t number, uint32_t offset,
                          uint32_t size) {
  const auto bytes = std::make_shared<std::vector<std::byte>>(std::min(kPiece, size - offset));
  return {.kind = static_cast<uint8_t>(proto::FrameKind::Piece),
          .head = proto::encode_piece_head(number, offset, size, proto::encode_header(header)),
          .body = {bytes, *bytes}};
}
net::OutFrame piece_of(uint64_t number, uint32_t index) {
  return piece_frame(header_of(number + 1), number, index * kPiece, kSize);
}

// One that is honest in its greeting alone.
class HostileLinkTest : public ::testing::Test {
 protected:
  HostileLinkTest() {
    LinkService::Options options;
    options.identity = identity_.get();
    options.listen = net::Endpoint{"127.0.0.1", 0};
    service_ = std::move(*LinkService::start(
        loop_, std::move(options),
        {.on_all_up = [](uint64_t) {},
         .on_down = [this](uint64_t, const plan::Seat&, const Error& error) { downs_.push_back(error); },
         .on_tensor = [this](uint64_t, const plan::Seat&, const proto::TensorHeader&,
                             const dag::Tensor&) { ++received_; }}));
    open(1);
  }
  void open(uint64_t generation) {
    auto assignment = std::make_shared<proto::AssignStage>();
    assignment->run = 1;
    assignment->plan_version = 1;
    assignment->seat = {1};
    assignment->programs = {receives_edge_0()};
    assignment->links = {{.seat = {0}, .peer = liar_->id()}};
    service_->open(generation, assignment);
  }
  struct Side {
    net::ConnectionPtr connection;
    std::optional<proto::LinkReady> ready;
    bool is_closed = false;
  };
  // Introduces itself and has its answer, or is sent away.
  std::unique_ptr<Side> greet(uint32_t stream = 0, uint64_t session = 0) {
    auto side = std::make_unique<Side>();
    const auto attempt =
        net::connect(loop_, *service_->endpoint(), {.identity = liar_.get(), .expected = identity_->id()},
                     [&](Result<net::ConnectionPtr> result) { side->connection = std::move(*result); });
    EXPECT_TRUE(loop_.run_until(kPatience, [&] { return side->connection != nullptr; }));
    side->connection->start({.on_frame =
                                 [to = side.get()](const net::InFrame& frame) {
                                   const auto message = proto::decode(frame.payload.span());
                                   if (const auto* ready = std::get_if<proto::LinkReady>(&*message))
                                     to->ready = *ready;
                                 },
                             .on_closed = [to = side.get()](const Error&) { to->is_closed = true; }});
    side->connection->send(message_frame(proto::LinkHello{
        .run = 1, .plan_version = 1, .seat = {0}, .streams = 4, .stream = stream, .session = session}));
    EXPECT_TRUE(loop_.run_until(kPatience, [&] { return side->ready || side->is_closed; }));
    return side;
  }
  std::optional<ErrorCode> down_after(std::vector<net::OutFrame> frames) {
    const auto side = greet();
    for (net::OutFrame& frame : frames) side->connection->send(std::move(frame));
    EXPECT_TRUE(loop_.run_until(kPatience, [&] { return !downs_.empty(); }));
    return downs_.empty() ? std::nullopt : std::optional(downs_.front().code);
  }

  net::Loop loop_;
  std::unique_ptr<security::Identity> identity_ = std::move(*security::Identity::generate()),
                                      liar_ = std::move(*security::Identity::generate());
  std::unique_ptr<LinkService> service_;
  std::vector<Error> downs_;
  uint64_t received_ = 0;
};

TEST_F(HostileLinkTest, PiecesInAnyOrderAreATensor) {
  const auto side = greet();
  ASSERT_TRUE(side->ready);
  EXPECT_GT(side->ready->streams, 0u);
  for (const uint32_t index : {2u, 0u, 3u, 1u})
    for (const uint64_t number : {1u, 0u}) side->connection->send(piece_of(number, index));
  EXPECT_TRUE(loop_.run_until(kPatience, [&] { return received_ == 2 || !downs_.empty(); }));
  EXPECT_TRUE(downs_.empty());
}

TEST_F(HostileLinkTest, APieceThatComesTwiceEndsTheLink) {
  EXPECT_EQ(down_after({piece_of(0, 1), piece_of(0, 1)}), ErrorCode::Corrupted);
}
TEST_F(HostileLinkTest, PiecesOfTwoTensorsUnderOneNumberEndTheLink) {
  EXPECT_EQ(down_after({piece_of(0, 1), piece_frame(header_of(77), 0, 0, kSize)}), ErrorCode::Corrupted);
}
TEST_F(HostileLinkTest, ATensorOfAnotherShapeThanItsEdgeEndsTheLink) {
  proto::TensorHeader header = header_of(1);
  header.spec.shape = {kPiece / 2};
  EXPECT_EQ(down_after({piece_frame(header, 0, 0, kSize / 2)}), ErrorCode::InvalidArgument);
}
TEST_F(HostileLinkTest, ANumberFarAheadEndsTheLink) {
  EXPECT_EQ(down_after({piece_of(kBegunMax, 0)}), ErrorCode::OutOfRange);
}
TEST_F(HostileLinkTest, ALargeTensorThatNoEdgeHasEndsTheLinkAtItsFirstPiece) {
  proto::TensorHeader header = header_of(1);
  header.edge = 5;
  header.spec.shape = {int64_t{200} << 20};
  EXPECT_EQ(down_after({piece_frame(header, 0, 0, 800u << 20)}), ErrorCode::ResourceExhausted);
}
TEST_F(HostileLinkTest, MoreTensorsThanMayBeBegunEndTheLink) {
  std::vector<net::OutFrame> frames;
  for (uint64_t number = 1; number <= 2 * window_of(kSize) / kSize + 1; ++number)
    frames.push_back(piece_of(number, 0));
  EXPECT_EQ(down_after(std::move(frames)), ErrorCode::ResourceExhausted);
  EXPECT_EQ(received_, 0u);
}
TEST_F(HostileLinkTest, AWholeTensorWherePiecesWereAgreedEndsTheLink) {
  const dag::Tensor small(dag::TensorSpec{dag::DType::F32, {10}});
  EXPECT_EQ(down_after({tensor_frame({.run = 1, .plan_version = 1, .edge = 5, .spec = small.spec()}, small)}),
            ErrorCode::InvalidArgument);
}

TEST_F(HostileLinkTest, AFurtherConnectionOfAnotherSessionIsSentAway) {
  const auto first = greet();
  ASSERT_TRUE(first->ready);
  const uint64_t session = first->ready->session;
  EXPECT_TRUE(greet(1, session ^ 1)->is_closed);
  EXPECT_TRUE(greet(4, session)->is_closed) << "there are four: 0 to 3";
  const auto second = greet(1, session);
  EXPECT_TRUE(second->ready);
  EXPECT_TRUE(greet(1, session)->is_closed) << "it is there already";
  for (const uint32_t index : {0u, 1u, 2u, 3u})
    (index % 2 == 0 ? first : second)->connection->send(piece_of(0, index));
  EXPECT_TRUE(loop_.run_until(kPatience, [&] { return received_ == 1; }));
  const auto again = greet();
  ASSERT_TRUE(again->ready);
  EXPECT_EQ(again->ready->received, 1u);
  EXPECT_NE(again->ready->session, session);
  EXPECT_TRUE(greet(1, session)->is_closed);
  EXPECT_TRUE(loop_.run_until(kPatience, [&] { return first->is_closed && second->is_closed; }));
  EXPECT_TRUE(downs_.empty());
}

// Whatever is said in pieces, nothing worse comes of it than a link that is down.
TEST_F(HostileLinkTest, RandomPiecesEndTheLinkOrAreTensors) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    downs_.clear();
    const auto side = greet();
    for (int i = 0; i < 40; ++i) {
      net::OutFrame frame = piece_of(rng.below(4), static_cast<uint32_t>(rng.below(4)));
      if (rng.below(10) == 0)
        frame.head[rng.below(frame.head.size())] = static_cast<std::byte>(rng.below(256));
      side->connection->send(std::move(frame));
    }
    ASSERT_TRUE(loop_.run_until(kPatience, [&] { return !downs_.empty() || side->is_closed; })) << received_;
    open(seed + 1);
  }
}

}  // namespace
}  // namespace weft::peer::test
