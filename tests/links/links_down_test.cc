// Links that cannot be had any more.
#include "tests/links/links_world.h"

namespace weft::peer::test {
namespace {

TEST_F(LinksTest, IsDownOnceWhenItCannotBeHadAgain) {
  options.heal_deadline = milliseconds(200);
  begin(/*relayed=*/false);
  exchange(10, [](uint64_t) {});
  direct->unplug();
  for (auto& wire : to_relay) wire->unplug();
  cut_all();
  ASSERT_TRUE(run_until([&] { return !nodes[0].downs.empty() && !nodes[1].downs.empty(); }));
  for (Node& node : nodes) {
    EXPECT_EQ(node.downs.size(), 1u);
    EXPECT_EQ(node.downs.front().code, ErrorCode::Timeout);
  }
  EXPECT_NE(nodes[0].downs.front().message.find("relay"), std::string::npos)
      << nodes[0].downs.front().message;
}

TEST_F(LinksTest, IsDownWhenNobodyComesAtAll) {
  options.ready_deadline = milliseconds(200);
  direct->unplug();
  for (auto& wire : to_relay) wire->unplug();
  begin(/*relayed=*/false);
  ASSERT_TRUE(run_until([&] { return !nodes[0].downs.empty() && !nodes[1].downs.empty(); }));
  EXPECT_EQ(nodes[0].up_count + nodes[1].up_count, 0);
}

// An assignment says who sends to whom, and who is linked: whether they agree is up to a broker.
TEST_F(LinksTest, IsDownWhereTheBrokerAssignedNone) {
  begin(/*relayed=*/false);
  const dag::Tensor tensor = made_tensor(0, 1);
  nodes[0].links->send({7, 3}, {.run = 1, .plan_version = 1, .step = 1, .spec = tensor.spec()}, tensor);
  ASSERT_EQ(nodes[0].downs.size(), 1u);
  EXPECT_EQ(nodes[0].downs.front().code, ErrorCode::InvalidArgument);
  EXPECT_EQ(nodes[0].down_seats, (std::vector<plan::Seat>{{7, 3}}));
  nodes[0].downs.clear();
  exchange(10, [](uint64_t) {});  // the others go on
}

// A replica that was left out is gone for good, and the round of the others lasts on.
TEST_F(LinksTest, OneThatIsDownLeavesTheOthersAsTheyAre) {
  options.ready_deadline = milliseconds(200);
  const proto::LinkRoute nobody{.seat = {0, 1},
                                .peer = relay_identity_->id(),
                                .dials = true,
                                .addresses = {"127.0.0.1:1"},
                                .relay_ticket = {}};
  begin(/*relayed=*/false, {nobody});
  const auto exchanged = [&](uint64_t count) {
    return run_until([&] {
      for (uint32_t stage : {0u, 1u})
        while (nodes[stage].sent < count && nodes[stage].sent < nodes[1 - stage].received + 30)
          nodes[stage].send_one();
      return nodes[0].received >= count && nodes[1].received >= count;
    });
  };
  ASSERT_TRUE(exchanged(10));
  ASSERT_TRUE(run_until([&] { return is_down(); }));
  ASSERT_TRUE(exchanged(60));
  direct->cut();  // and it heals, as before
  ASSERT_TRUE(exchanged(200));
  const dag::Tensor tensor = made_tensor(0, 1);
  nodes[0].links->send({0, 1}, {.run = 1, .plan_version = 1, .step = 1, .spec = tensor.spec()}, tensor);
  nodes[0].links->refuse({0, 1}, {ErrorCode::Corrupted, "late"});
  EXPECT_EQ(nodes[0].down_seats, (std::vector<plan::Seat>{{0, 1}})) << "once";
  EXPECT_TRUE(nodes[1].downs.empty());
  for (Node& node : nodes) EXPECT_TRUE(node.all_equal && node.is_in_order);
}

TEST_F(LinksTest, IsDownWhenTheOtherSideTakesTooLittle) {
  options.kept_bytes_max = 1 << 20;
  begin(/*relayed=*/false);
  exchange(10, [](uint64_t) {});
  direct->swallow();
  while (nodes[0].downs.empty() && nodes[0].sent < 10'000) nodes[0].send_one();
  ASSERT_EQ(nodes[0].downs.size(), 1u);
  EXPECT_EQ(nodes[0].downs.front().code, ErrorCode::ResourceExhausted);
}

}  // namespace
}  // namespace weft::peer::test
