// Means on which replicas have agreed are looked at again: who took another one is found, no snapshot with it
// counts, and the second time it is out.
#include "tests/broker/local_run.h"
#include "tests/broker/local_world.h"

namespace weft::broker {
namespace {

BrokerOptions looking() {
  BrokerOptions options{.software = "0.1.0"};
  options.run.mean_checks = test::mean_checks();
  return options;
}

class MeansTest : public ::testing::Test {
 protected:
  MeansTest() { local_.are_others = true; }
  void begin(uint8_t peers) {
    for (uint8_t peer = 1; peer <= peers; ++peer) local_.world.join(peer, peer);
    local_.world.submit(100, 3);
    local_.plan();
    while (local_.deliver()) {
    }
  }
  uint64_t step() { return local_.world.broker.status(1)->step; }
  void plan_again() {
    const auto& point = local_.world.plannings.back().checkpoint;
    local_.shape.begun_after = point ? point->made() : 0;
    local_.plan();
  }
  // From now on what that peer shows is changed by it, once.
  void change(uint8_t peer, std::function<void(replicas::ShownPiece&)> how) {
    local_.change = [this, peer, how = std::move(how)](ConnectionId from, proto::Message& message) {
      auto* piece = std::get_if<proto::MeanPiece>(&message);
      if (from != peer || piece == nullptr) return;
      how(piece->shown);
      local_.change = {};
    };
  }

  LocalWorld local_{{.replicas = 3, .every = 4, .steps = 96, .replicas_max = 3}, {}, looking()};
};

TEST_F(MeansTest, OfHonestReplicasEachAgreementIsLookedAtAndNothingComesOfIt) {
  begin(3);
  local_.play([&] { return local_.has_ended(); });
  EXPECT_EQ(local_.world.states.at(1), JobState::Finished) << local_.reason();
  EXPECT_EQ(local_.notices().find("looked at again"), std::string::npos) << local_.notices();
  size_t asked = 0;
  for (const Record& record : local_.world.records)
    if (const auto* issued = std::get_if<CommandIssued>(&record))
      asked += issued->command.kind == proto::CommandKind::CheckMean ? 1 : 0;
  EXPECT_EQ(asked, 96u / 12) << "one of each agreement";
}

// A run of fixed replicas that moves is granted all rounds up to the next one that settles, and stages show
// what they have behind that: of the last three.
TEST(MeanChecks, AreOfAgreementsThatStagesStillHave) {
  constexpr uint64_t kEvery = 3, kSettles = 6 * kEvery;
  local::LocalRun run({.replicas = 3, .every = kEvery, .steps = 180, .settle_every = 6}, {}, looking().run);
  run.hear(run.run->start(run.now));
  while (run.run->committed_step() < kEvery + 1 && run.turn()) continue;
  run.hear(run.run->request_stop(run.now, /*to_go_on=*/true));
  run.play();
  EXPECT_EQ(run.stopped, 3 * kSettles);
  std::vector<uint64_t> looked_at;
  for (const proto::Command& command : run.script)
    if (command.kind == proto::CommandKind::CheckMean && command.step == kSettles)
      looked_at.push_back(command.check.agreement);
  EXPECT_EQ(looked_at, (std::vector<uint64_t>{kSettles - 2 * kEvery, kSettles - kEvery, kSettles}));
}

// Elsewhere a stage has what it showed until its next round begins. So nobody is asked for an agreement
// behind which more is granted, whenever a run is to stop.
TEST(MeanChecks, OfRoundsThatDoNotOverlapAreOfTheLastAgreementAlone) {
  size_t asked = 0, agreed = 0;
  for (const bool stays : {false, true})
    for (const bool to_go_on : {false, true})
      for (int moment = 0; moment < 60; ++moment) {
        local::LocalRun run({.replicas = 3, .every = 3, .steps = 180, .replicas_max = 3}, {}, looking().run);
        if (stays) run.run->let_copies_stay(true);
        run.hear(run.run->start(run.now));
        for (int turn = 0; turn < moment && run.turn(); ++turn) continue;
        run.hear(run.run->request_stop(run.now, to_go_on));
        run.play();
        agreed += run.run->committed_step() / 3;
        for (const proto::Command& command : run.script) {
          if (command.kind != proto::CommandKind::CheckMean) continue;
          ++asked;
          EXPECT_EQ(command.check.agreement, command.step) << "moment " << moment << ", stays " << stays;
        }
      }
  EXPECT_GT(2 * asked, agreed) << "most of them are looked at";
}

TEST_F(MeansTest, WhoTookAnotherMeanIsFoundAndTheSecondTimeItIsOut) {
  begin(5);
  const uint8_t liar = local_.peer_of(1);
  for (int time = 1; time <= 2; ++time) {
    SCOPED_TRACE(time);
    const uint64_t before = step();
    local_.play([&] { return step() >= before + 20; });
    ASSERT_EQ(local_.peer_of(1), liar);
    uint64_t agreed = 0;
    change(liar, [&](replicas::ShownPiece& shown) {
      shown.mean.bytes[0] ^= 1;
      agreed = step();
    });
    const std::set<uint8_t> candidates = local_.asked();
    ASSERT_FALSE(candidates.empty());
    EXPECT_EQ(candidates.contains(liar), time == 1);
    const auto& point = local_.world.plannings.back().checkpoint;
    EXPECT_LT(point ? point->made() : 0, agreed) << "what it goes back to is from before";
    if (time == 1) plan_again();
  }
  EXPECT_NE(local_.notices().find("is wrong"), std::string::npos) << local_.notices();
}

TEST_F(MeansTest, OfTwoWhoSayDifferentThingsTwiceBothAreOut) {
  begin(5);
  const uint8_t owner = local_.peer_of(1), other = local_.peer_of(2);
  for (int time = 1; time <= 2; ++time) {
    SCOPED_TRACE(time);
    const uint64_t before = step();
    local_.play([&] { return step() >= before + 20; });
    ASSERT_EQ(local_.peer_of(2), other);
    change(other, [](replicas::ShownPiece& shown) { shown.difference[0] = 3; });
    const std::set<uint8_t> candidates = local_.asked();
    ASSERT_FALSE(candidates.empty());
    EXPECT_EQ(candidates.contains(other), time == 1);
    EXPECT_EQ(candidates.contains(owner), time == 1);
    if (time == 1) plan_again();
  }
  EXPECT_NE(local_.notices().find("say different things"), std::string::npos) << local_.notices();
}

TEST_F(MeansTest, WhoSaysOtherThingsThanTwoOthersIsOut) {
  begin(5);
  local_.play([&] { return step() >= 20; });
  const uint8_t owner = local_.peer_of(1), one = local_.peer_of(0), other = local_.peer_of(2);
  change(owner, [](replicas::ShownPiece& shown) {
    for (Digest& heard : shown.heard) heard.bytes[0] ^= 1;
  });
  const std::set<uint8_t> candidates = local_.asked();
  EXPECT_TRUE(candidates.contains(one) && candidates.contains(other)) << local_.notices();
  EXPECT_FALSE(candidates.contains(owner)) << local_.notices();
}

TEST_F(MeansTest, WhoGoesOnWithoutShowingBreaksTheProtocol) {
  begin(3);
  const uint8_t silent = local_.peer_of(2);
  local_.change = [&](ConnectionId from, proto::Message& message) {
    if (from == silent && std::holds_alternative<proto::MeanPiece>(message)) message = proto::Heartbeat{};
  };
  local_.play([&] { return !local_.world.closed.empty(); });
  EXPECT_EQ(local_.world.closed, std::vector<ConnectionId>{silent});
}

TEST_F(MeansTest, WhoDoesNotSayWhatItOwesBreaksTheProtocol) {
  begin(3);
  const uint8_t owner = local_.peer_of(1);
  local_.change = [&](ConnectionId from, proto::Message& message) {
    if (auto* report = std::get_if<proto::StepReport>(&message); from == owner && report != nullptr)
      report->owed.clear();
  };
  local_.play([&] { return !local_.world.closed.empty(); });
  EXPECT_EQ(local_.world.closed, std::vector<ConnectionId>{owner});
}

}  // namespace
}  // namespace weft::broker
