// The simulated network and disk do what their names say: else what they find means nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sim/disk.h"
#include "sim/network.h"

namespace weft::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class TwoNodes : public testing::Test {
 protected:
  TwoNodes() {
    network.set_acceptor(2, [this](Line line, Network::Accepted accepted) {
      there = line;
      there.listen({.on_packet =
                        [this](const Packet& packet) {
                          got.push_back(std::get<proto::HeartbeatAck>(*packet.message).sequence);
                        },
                    .on_lost = [this](const Error&) { ++lost_there; }});
      accepted();
    });
    network.dial(1, 2, seconds(10), [this](Result<Line> result) {
      if (!result) return;
      here = *result;
      here.listen({.on_packet = [](const Packet&) {}, .on_lost = [this](const Error&) { ++lost_here; }});
    });
    run(seconds(1));
  }
  ~TwoNodes() override { world.clear(); }
  void send(uint64_t number) {
    here.send({.message = std::make_shared<const proto::Message>(proto::HeartbeatAck{number})});
  }
  void run(Duration time) {
    bool over = false;
    world.after(time, [&over] { over = true; });
    while (!over && world.step()) continue;
  }

  World world{1};
  Network network{world, 1, milliseconds(20), 1'000'000};
  Draw draw{1, 1};
  Line here, there;
  std::vector<uint64_t> got;
  int lost_here = 0, lost_there = 0;
};

TEST_F(TwoNodes, AConnectionKeepsOrderWhateverIsLate) {
  std::vector<uint64_t> sent;
  for (uint64_t i = 0; i < 500; ++i) {
    send(i);
    sent.push_back(i);
  }
  run(seconds(60));
  EXPECT_EQ(got, sent);
}

TEST_F(TwoNodes, WhatANodeSendsSharesItsUplinkAndLeavesItsDownlinkAlone) {
  constexpr int64_t kBytes = 10'000'000;
  std::vector<Duration> took;
  const auto begin = [&](Network::Direction direction) {
    network.transfer(1, direction, kBytes, [&, start = world.now()] { took.push_back(world.now() - start); });
  };
  begin(Network::Direction::Out);
  run(seconds(100));
  begin(Network::Direction::In);
  run(seconds(100));
  ASSERT_EQ(took.size(), 2u);
  const Duration out = took[0], in = took[1];
  took.clear();
  begin(Network::Direction::In);
  run(seconds(100));
  ASSERT_EQ(took, std::vector<Duration>{in});
  took.clear();
  begin(Network::Direction::Out);
  begin(Network::Direction::Out);
  run(seconds(100));
  ASSERT_EQ(took.size(), 2u);
  EXPECT_NEAR(static_cast<double>(took[1].count()), 2.0 * static_cast<double>(out.count()), 1000);
  EXPECT_GE(took[0], 2 * out - out / 50) << "each has its part";
}

TEST_F(TwoNodes, AMessageComesBetweenThePiecesOfATransfer) {
  bool done = false;
  network.transfer(1, Network::Direction::Out, 1'000'000'000, [&] { done = true; });
  send(7);
  run(seconds(5));
  EXPECT_EQ(got, std::vector<uint64_t>{7});
  EXPECT_FALSE(done);
}

TEST_F(TwoNodes, AConnectionDoesNotWaitForAllThatAnotherHasToSend) {
  network.set_line(1, Network::Direction::Out, 1e6);
  constexpr uint64_t kLarge = 20;
  for (uint64_t i = 0; i < kLarge; ++i)
    here.send({.message = std::make_shared<const proto::Message>(proto::HeartbeatAck{i}), .size = 500'000});
  network.dial(1, 2, seconds(10), [](Result<Line> another) {
    another.value().send({.message = std::make_shared<const proto::Message>(proto::HeartbeatAck{kLarge})});
  });
  run(seconds(2));
  EXPECT_NE(std::find(got.begin(), got.end(), kLarge), got.end()) << "ten seconds of the line are in front";
}

TEST_F(TwoNodes, ATransferIsNoFasterThanItsSpeed) {
  network.set_line(1, Network::Direction::Out, 1e6);
  Duration took{};
  network.transfer(
      1, Network::Direction::Out, 1'000'000, [&, start = world.now()] { took = world.now() - start; },
      /*speed=*/100'000);
  run(seconds(20));
  EXPECT_NEAR(weft::seconds(took), 10, 0.01);
}

TEST_F(TwoNodes, ManyMessagesTakeAsLongAsTheNarrowestPartOfTheirWayAllows) {
  const net::ShapeDirection path = network.path(1, 2);
  for (uint64_t i = 0; i < 100; ++i)
    here.send({.message = std::make_shared<const proto::Message>(proto::HeartbeatAck{i}), .size = 100'000});
  const Instant start = world.now();
  while (got.size() < 100 && world.step()) continue;
  EXPECT_EQ(got.size(), 100u);
  EXPECT_GE(weft::seconds(world.now() - start), 9.9e6 / path.bytes_per_second);
}

TEST_F(TwoNodes, WhatIsSentIntoAPartitionComesAfterIt) {
  network.isolate(2, /*out=*/false, /*in=*/true);
  send(7);
  run(seconds(5));
  EXPECT_TRUE(got.empty());
  network.isolate(2, false, false);
  run(seconds(5));
  EXPECT_EQ(got, std::vector<uint64_t>{7});
}

TEST_F(TwoNodes, ASenderIsToldWhenAPartitionLasts) {
  network.isolate(2, /*out=*/false, /*in=*/true);
  send(7);
  run(seconds(40));
  EXPECT_EQ(lost_here, 1);
  EXPECT_TRUE(got.empty());
}

TEST_F(TwoNodes, NobodyIsToldOfABlackHole) {
  network.blackhole_one(1, draw);
  send(7);
  run(seconds(300));
  EXPECT_TRUE(got.empty());
  EXPECT_EQ(lost_here + lost_there, 0);
}

TEST_F(TwoNodes, BothSidesHearOfABreakInTheEnd) {
  network.break_one(1, draw);
  run(seconds(60));
  EXPECT_EQ(lost_here, 1);
  EXPECT_EQ(lost_there, 1);
}

TEST_F(TwoNodes, WhatWasSentBeforeAClosingArrives) {
  send(1);
  send(2);
  here.close();
  run(seconds(5));
  EXPECT_EQ(got, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(lost_there, 1);
  EXPECT_EQ(lost_here, 0);
}

TEST_F(TwoNodes, AProcessThatEndsIsNoticedAMachineThatGoesIsNot) {
  network.drop_node(1, /*silent=*/false);
  run(seconds(5));
  EXPECT_EQ(lost_there, 1);
}

TEST_F(TwoNodes, AMachineThatGoesIsNotNoticed) {
  network.drop_node(1, /*silent=*/true);
  run(seconds(300));
  EXPECT_EQ(lost_there, 0);
}

TEST(World, WhatHappensAtOneInstantHappensInTheOrderOfItsPlanning) {
  World world(1);
  std::string order;
  world.after(seconds(2), [&] { order += "c"; });
  world.after(seconds(1), [&] { order += "a"; });
  world.after(seconds(1), [&] { order += "b"; });
  while (world.step()) continue;
  EXPECT_EQ(order, "abc");
}

TEST(SimBlobs, WhatIsTransientIsGoneAfterACrashWhatIsDurableStays) {
  SimBlobs blobs;
  const Digest a = digest_from_hex(std::string(64, 'a')).value(),
               b = digest_from_hex(std::string(64, 'b')).value();
  ASSERT_TRUE(blobs.put(a, 1, /*durable=*/true, {}));
  ASSERT_TRUE(blobs.put(b, 1, /*durable=*/false, {}));
  blobs.wipe_transient();
  EXPECT_TRUE(blobs.has(a));
  EXPECT_FALSE(blobs.has(b));
}

}  // namespace
}  // namespace weft::sim
