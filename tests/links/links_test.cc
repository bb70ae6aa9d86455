// Two stages over real sockets of 127.0.0.1, with wires between them that are cut: each tensor comes exactly
// once with its bytes, and over one connection in order.
#include "tests/links/links_world.h"

namespace weft::peer::test {
namespace {

TEST_F(LinksTest, CarriesTensorsBothWays) {
  begin(/*relayed=*/false);
  exchange(200, [](uint64_t) {});
  EXPECT_EQ(direct->accepted(), 1);
  EXPECT_EQ(waited_at_relay, 0);
}

TEST_F(LinksTest, CarriesTensorsThroughTheRelay) {
  begin(/*relayed=*/true);
  exchange(200, [](uint64_t) {});
  EXPECT_EQ(waited_at_relay, 1);
}

class CutLinksTest : public LinksTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, CutLinksTest, ::testing::Range(1, 6));

TEST_P(CutLinksTest, EachTensorOnceOverAddresses) {
  exchange_with_cuts(static_cast<uint64_t>(GetParam()), /*relayed=*/false, /*swallows=*/false);
}
TEST_P(CutLinksTest, EachTensorOnceOverTheRelay) {
  exchange_with_cuts(static_cast<uint64_t>(GetParam()), /*relayed=*/true, /*swallows=*/false);
}
TEST_P(CutLinksTest, EachTensorOnceWhenConnectionsFallSilent) {
  exchange_with_cuts(static_cast<uint64_t>(GetParam()), /*relayed=*/GetParam() % 2 == 0, /*swallows=*/true);
}

TEST_P(CutLinksTest, EachTensorOnceOverSeveralConnections) {
  options.far = Duration::zero();
  exchange_with_cuts(static_cast<uint64_t>(GetParam()), /*relayed=*/false, /*swallows=*/GetParam() % 2 == 0);
}

// As when a machine wakes: one side knows that its connections are worth nothing.
TEST_P(CutLinksTest, EachTensorOnceWhenASideGivesItsConnectionsUp) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  begin(/*relayed=*/GetParam() % 2 == 0);
  Rng rng(static_cast<uint64_t>(GetParam()), 0);
  uint64_t next = rng.below(40);
  int given_up = 0;
  exchange(250, [&](uint64_t came) {
    if (came < next) return;
    next = came + rng.below(40);
    ++given_up;
    loop.post([this, stage = rng.below(2)] {
      nodes[stage].links->lose_connections({ErrorCode::Unavailable, "this machine slept"});
    });
  });
  EXPECT_GT(given_up, 5);
}

// ---- several connections

TEST_F(LinksTest, FarAwaySeveralConnectionsCarryIt) {
  options.far = Duration::zero();
  begin(/*relayed=*/false);
  exchange(200, [](uint64_t) {});
  ASSERT_TRUE(run_until([&] { return direct->accepted() == 4; }));
  exchange(400, [](uint64_t) {});
}

TEST_F(LinksTest, BothSidesKeepToTheFewerConnections) {
  options.far = Duration::zero();
  other_options = options;
  other_options->streams = 2;
  begin(/*relayed=*/false);
  exchange(200, [](uint64_t) {});
  ASSERT_TRUE(run_until([&] { return direct->accepted() >= 2; }));
  exchange(400, [](uint64_t) {});
  EXPECT_EQ(direct->accepted(), 2);
}

// As with a peer before minor version 5: whole tensors, over one connection.
TEST_F(LinksTest, ASideThatKnowsNoPiecesGetsWholeTensors) {
  options.far = Duration::zero();
  for (const uint32_t without : {0u, 1u}) {
    SCOPED_TRACE(without);
    for (Node& node : nodes) node.restart();
    other_options = options;
    (without == 1 ? *other_options : options).streams = 0;
    const int before = direct->accepted();
    begin(/*relayed=*/false);
    int cuts = 0;
    exchange(100, [&](uint64_t came) {
      if (came % 50 != 0 || cuts == 2) return;
      ++cuts;
      direct->cut();
    });
    EXPECT_TRUE(nodes[0].is_in_order && nodes[1].is_in_order);
    EXPECT_LE(direct->accepted(), before + 1 + 2 * cuts);
    options.streams = 4;
  }
}

// A port that takes one connection and then none: the link is as it was with one.
TEST_F(LinksTest, FurtherConnectionsThatDoNotComeUpAreMissedByNobody) {
  options.far = Duration::zero();
  begin(/*relayed=*/false);
  ASSERT_TRUE(run_until([&] { return direct->accepted() == 1; }));
  direct->unplug();
  exchange(100, [](uint64_t) {});
}

TEST_F(LinksTest, WhatIsSentWhileTheLinkIsDownGoesLater) {
  begin(/*relayed=*/false);
  exchange(10, [](uint64_t) {});
  cut_all();
  for (int i = 0; i < 10; ++i)
    for (Node& node : nodes) node.send_one();
  exchange(20, [](uint64_t) {});
}

TEST_F(LinksTest, GoesToTheRelayWhenTheAddressAnswersNoMore) {
  begin(/*relayed=*/false);
  exchange(10, [](uint64_t) {});
  direct->unplug();
  cut_all();
  exchange(200, [](uint64_t) {});
  EXPECT_GE(waited_at_relay, 1);
}

// The broker was killed and started again: both sides come to the relay by themselves, for its invitation may
// not reach a peer that is not back yet.
TEST_F(LinksTest, MeetsAgainAtARelayThatWasAway) {
  begin(/*relayed=*/true);
  exchange(10, [](uint64_t) {});
  const net::Endpoint endpoint = relay_->endpoint();
  relay_.reset();
  invites = false;
  bool later = false;
  const auto timer = loop.after(milliseconds(100), [&] { later = true; });
  ASSERT_TRUE(run_until([&] { return later; }));
  open_relay(endpoint);
  exchange(200, [](uint64_t) {});
}

proto::StageProgram program_that_receives(const dag::TensorSpec& spec, uint32_t from) {
  dag::GraphBuilder builder(dag::op_table());
  proto::StageProgram program;
  program.receives = {{.edge = 0, .value = builder.input("edge.0", spec), .stage = from}};
  program.graph = std::make_shared<const dag::Graph>(builder.finish());
  return program;
}

TEST_F(LinksTest, ATensorOfAnotherShapeThanItsEdgeIsRefusedAtItsHead) {
  nodes[1].programs = {program_that_receives(made_tensor(0, 1).spec(), /*from=*/0)};
  ASSERT_NE(made_tensor(0, 1).spec(), made_tensor(0, 2).spec());
  begin(/*relayed=*/false);
  nodes[0].send_one();
  ASSERT_TRUE(run_until([&] { return nodes[1].received == 1 || is_down(); }));
  EXPECT_TRUE(nodes[1].all_equal);
  ASSERT_FALSE(is_down());
  nodes[0].send_one();
  ASSERT_TRUE(run_until([&] { return is_down(); }));
  ASSERT_EQ(nodes[1].downs.size(), 1u);
  EXPECT_EQ(nodes[1].downs.front().code, ErrorCode::InvalidArgument);
  EXPECT_NE(nodes[1].downs.front().message.find("expected"), std::string::npos)
      << nodes[1].downs.front().message;
  EXPECT_EQ(nodes[1].received, 1u);
}

// What is not read waits at the other side, and is not taken for silence.
TEST_F(LinksTest, WaitsWhileItsOwnerIsBehind) {
  options.silence_deadline = milliseconds(100);
  begin(/*relayed=*/false);
  exchange(10, [](uint64_t) {});
  nodes[1].links->pause_reading(true);
  for (int i = 0; i < 20; ++i) nodes[0].send_one();
  bool later = false;
  const auto timer = loop.after(milliseconds(300), [&] { later = true; });
  ASSERT_TRUE(run_until([&] { return later; }));
  EXPECT_EQ(nodes[1].received, 10u);
  EXPECT_FALSE(is_down());
  nodes[1].links->pause_reading(false);
  ASSERT_TRUE(run_until([&] { return nodes[1].received == 30 || is_down(); }));
  EXPECT_TRUE(nodes[1].all_equal);
  EXPECT_FALSE(is_down());
}

// Tensors that are sent again count as use of the link: they cost what they cost.
TEST_F(LinksTest, CountsWhatWasSentOverAllConnections) {
  begin(/*relayed=*/false);
  exchange(100, [&](uint64_t came) {
    if (came == 50) cut_all();
  });
  uint64_t bytes = 0;
  for (uint64_t number = 1; number <= 100; ++number)
    bytes += static_cast<uint64_t>(made_tensor(0, number).spec().bytes().value);
  const auto use = nodes[0].links->take_use();
  ASSERT_EQ(use.size(), 1u);
  EXPECT_GT(use[0].bytes_sent, bytes);
  EXPECT_LT(nodes[0].links->take_use()[0].bytes_sent, 1000u);
}

}  // namespace
}  // namespace weft::peer::test
