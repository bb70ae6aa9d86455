// What the simulated processes are made of.
#include <gtest/gtest.h>

#include <string>

#include "sim/broker_bugs.h"
#include "sim/peer_memory.h"
#include "sim/process.h"
#include "sim/relay.h"
#include "sim/replica_laws.h"
#include "sim/sent_stages.h"

namespace weft::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void run_for(World& world, Duration duration) {
  bool over = false;
  world.after(duration, [&over] { over = true; });
  while (!over) ASSERT_TRUE(world.step());
}

TEST(SentStages, CommandsOfAConnectionFollowEachOtherAndAreOfItsPlan) {
  SentStages sent;
  const PeerId peer{};
  proto::AssignStage stage;
  stage.run = 1, stage.plan_version = 2;
  proto::Command command;
  command.run = 1, command.plan_version = 2, command.sequence = 1;
  EXPECT_FALSE(sent.on_command(7, command).has_stage);
  EXPECT_FALSE(sent.on_assigned(peer, 7, stage));
  EXPECT_FALSE(sent.on_command(7, command).complaint);
  EXPECT_TRUE(sent.on_command(7, command).complaint);
  command.sequence = 3;
  EXPECT_TRUE(sent.on_command(7, command).complaint);
  proto::ResumeStage resumed;
  resumed.run = 1, resumed.plan_version = 2;
  sent.on_resumed(peer, 8, resumed);
  command.sequence = 9;
  EXPECT_FALSE(sent.on_command(8, command).complaint);
  sent.on_connection_ended(8);
  EXPECT_FALSE(sent.on_command(8, command).has_stage);
}

TEST(SentStages, APeerHasOneStageAtATimeOnAConnection) {
  SentStages sent;
  const PeerId peer{};
  proto::AssignStage stage;
  stage.run = 1, stage.plan_version = 2;
  EXPECT_FALSE(sent.on_assigned(peer, 7, stage));
  EXPECT_FALSE(sent.on_assigned(peer, 7, stage));
  stage.run = 3;
  EXPECT_TRUE(sent.on_assigned(peer, 7, stage));
  EXPECT_FALSE(sent.on_assigned(peer, 8, stage));
  proto::ReleaseStage released;
  released.run = 3, released.plan_version = 1;
  sent.on_released(peer, released);  // of an earlier plan
  stage.run = 4;
  EXPECT_TRUE(sent.on_assigned(peer, 8, stage));
  released.run = 4, released.plan_version = 2;
  sent.on_released(peer, released);
  stage.run = 5;
  EXPECT_FALSE(sent.on_assigned(peer, 8, stage));
}

// Of a round of four steps the second replica makes one, so that the first makes all others alone.
class ReplicaLawsTest : public testing::Test {
 protected:
  ReplicaLawsTest() {
    local.terms = {.count = 2, .every = 4, .shares = {4, 1}};
    local.steps = 20;
    laws.on_plan({.local_steps = local});
    broker::PlannedRun plan;
    plan.local_steps = local;
    EXPECT_FALSE(laws.on_run(plan, 1));
  }
  void lose_the_first(uint64_t committed) {
    EXPECT_FALSE(laws.on_command(
        {.kind = proto::CommandKind::LeaveOut, .step = 4, .committed = committed, .left_out = {{0}, 1}}));
  }
  static JobSpec two_replicas() {
    JobSpec job;
    job.every = 4;
    job.replicas = 2;
    return job;
  }
  const JobSpec spec = two_replicas();
  replicas::LocalSteps local{};
  ReplicaLaws laws{spec};
};

TEST_F(ReplicaLawsTest, OfAStepThatNobodyMakesAnyMoreThereIsNoEvent) {
  EXPECT_EQ(laws.told(1), 2u);
  EXPECT_EQ(laws.told(4), 5u);
  lose_the_first(/*committed=*/1);
  EXPECT_EQ(laws.told(4), 2u);
}

TEST_F(ReplicaLawsTest, ARunEndsWhereSomebodyIsGoneAlsoOnceAllHaveAgreed) {
  EXPECT_FALSE(laws.ends());
  lose_the_first(/*committed=*/4);
  EXPECT_TRUE(laws.ends());
  EXPECT_EQ(laws.told(4), 5u) << "it had made its steps";
}

TEST(Process, WhatIsDoneWhileItIsFrozenWaitsInOrder) {
  Process process;
  process.begin();
  std::string done;
  process.run([&] { done += "a"; });
  process.freeze();
  process.run([&] { done += "b"; });
  process.guard()([&] { done += "c"; });
  EXPECT_EQ(done, "a");
  process.thaw();
  EXPECT_EQ(done, "abc");
}

TEST(Process, NothingIsDoneAfterTheLifeThatItBelongsTo) {
  Process process;
  process.begin();
  int done = 0;
  const Process::Guard guard = process.guard();
  process.freeze();
  process.run([&] { ++done; });
  process.end();
  EXPECT_FALSE(process.frozen());
  process.begin();
  process.thaw();
  guard([&] { ++done; });
  EXPECT_EQ(done, 0);
}

TEST(Process, WhatEndsItWhileItThawsIsTheLast) {
  Process process;
  process.begin();
  int done = 0;
  process.freeze();
  process.run([&] { process.end(); });
  process.run([&] { ++done; });
  process.thaw();
  EXPECT_EQ(done, 0);
}

class RelayTest : public testing::Test {
 protected:
  Relay::Joined note(const std::string& who) {
    return [this, who](std::optional<Line> line) { said_ += who + (line ? "+" : "-"); };
  }
  World world_{1};
  Network network_{world_, 1, milliseconds(20), 1'000'000};
  Relay relay_{world_, network_};
  std::string said_;
  const proto::Secret ticket_{7};
};

TEST_F(RelayTest, TwoWithOneTicketAreJoined) {
  relay_.grant(ticket_);
  EXPECT_TRUE(relay_.come(1, ticket_, note("a")));
  EXPECT_EQ(said_, "");
  EXPECT_FALSE(relay_.come(2, ticket_, note("b")));
  EXPECT_EQ(said_, "a+b+");
  run_for(world_, seconds(20));
  EXPECT_EQ(said_, "a+b+");
}

TEST_F(RelayTest, WhoComesAgainTakesItsOwnPlace) {
  relay_.grant(ticket_);
  EXPECT_TRUE(relay_.come(1, ticket_, note("a")));
  run_for(world_, seconds(6));
  EXPECT_TRUE(relay_.come(1, ticket_, note("b")));
  EXPECT_EQ(said_, "a-");
  run_for(world_, seconds(6));
  EXPECT_EQ(said_, "a-") << "the first one's time is over, which is not the second's";
  run_for(world_, seconds(6));
  EXPECT_EQ(said_, "a-b-");
}

TEST_F(RelayTest, NobodyWaitsWithoutAGrantOrBeyondIt) {
  EXPECT_FALSE(relay_.come(1, ticket_, note("a")));
  EXPECT_EQ(said_, "a-");
  relay_.grant(ticket_);
  EXPECT_TRUE(relay_.come(1, ticket_, note("b")));
  relay_.revoke(ticket_);
  EXPECT_EQ(said_, "a-b-");
  relay_.grant(ticket_);
  EXPECT_TRUE(relay_.come(1, ticket_, note("c")));
  relay_.end();
  EXPECT_EQ(said_, "a-b-c-");
  EXPECT_FALSE(relay_.come(1, ticket_, note("d"))) << "grants end with the process";
}

Packet packet_of(proto::Message message) {
  return {.message = std::make_shared<const proto::Message>(std::move(message)), .size = 150};
}

uint64_t sequence_of(const Packet& packet) { return std::get<proto::Command>(*packet.message).sequence; }

TEST(BrokerBugs, NoneChangesNothing) {
  BrokerBugs bugs(Bug::None);
  (void)bugs.say(1, packet_of(proto::ResumeStage{}));
  const Packet command = packet_of(proto::Command{.sequence = 5});
  const auto said = bugs.say(1, command);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0].message, command.message);
  bugs.note({broker::Send{}});
  EXPECT_TRUE(bugs.said_early().empty());
  EXPECT_FALSE(bugs.shifts(1));
}

TEST(BrokerBugs, AStageThatResumesGetsACommandTwice) {
  BrokerBugs bugs(Bug::CommandTwice);
  EXPECT_EQ(bugs.say(1, packet_of(proto::Command{.sequence = 5})).size(), 1u);
  (void)bugs.say(1, packet_of(proto::ResumeStage{}));
  const auto twice = bugs.say(1, packet_of(proto::Command{.sequence = 6}));
  ASSERT_EQ(twice.size(), 2u);
  EXPECT_EQ(sequence_of(twice[0]), 6u);
  EXPECT_EQ(sequence_of(twice[1]), 7u);
  const auto after = bugs.say(1, packet_of(proto::Command{.sequence = 7}));
  ASSERT_EQ(after.size(), 1u);
  EXPECT_EQ(sequence_of(after[0]), 8u) << "those after it keep their distance";
  EXPECT_EQ(sequence_of(bugs.say(2, packet_of(proto::Command{.sequence = 7}))[0]), 7u);
}

TEST(BrokerBugs, ANormIsTheOneBefore) {
  BrokerBugs bugs(Bug::WrongNorm);
  const auto norm_said = [&](double norm) {
    const auto said = bugs.say(1, packet_of(proto::GradientNorm{.run = 3, .norm = norm}));
    return std::get<proto::GradientNorm>(*said.at(0).message).norm;
  };
  EXPECT_EQ(norm_said(1.5), 1.5);
  EXPECT_EQ(norm_said(2.5), 1.5);
  EXPECT_EQ(norm_said(3.5), 2.5);
}

TEST(BrokerBugs, WhatIsSaidEarlyIsSaidOnceATurn) {
  BrokerBugs bugs(Bug::EffectsBeforeDurable);
  bugs.note({broker::Log{"x"}, broker::Send{.connection = 4}});
  ASSERT_EQ(bugs.said_early().size(), 1u);
  EXPECT_EQ(bugs.said_early()[0].connection, 4u);
  EXPECT_TRUE(bugs.end_turn());
  EXPECT_FALSE(bugs.end_turn());
}

TEST(PeerBlobs, TheLatestFetchCounts) {
  PeerBlobs blobs;
  const Digest blob{{1}};
  const uint64_t first = blobs.begin_fetch(blob), second = blobs.begin_fetch(blob);
  EXPECT_FALSE(blobs.end_fetch(blob, first));
  EXPECT_TRUE(blobs.end_fetch(blob, second));
  EXPECT_FALSE(blobs.end_fetch(blob, second)) << "it has ended";
  blobs.hold(blob, 42);
  EXPECT_EQ(blobs.size(blob), 42);
  EXPECT_EQ(blobs.count(), 1u);
  blobs.drop(blob);
  EXPECT_EQ(blobs.size(blob), std::nullopt);
}

TEST(Microbatches, KeepWhatHasComeForEach) {
  Microbatches microbatches;
  TensorPacket packet{.header = {.step = 2, .microbatch = 1}, .value = 5};
  const auto key = Microbatches::key_of(packet.header);
  EXPECT_EQ(microbatches.tensors(key), nullptr);
  microbatches.add_again(packet);
  EXPECT_EQ(microbatches.tensors(key), nullptr) << "there is nothing to add it to";
  microbatches.put(key, 3, packet, /*keeps_old=*/false);
  packet.value = 6;
  microbatches.put(key, 3, packet, /*keeps_old=*/true);
  ASSERT_NE(microbatches.tensors(key), nullptr);
  EXPECT_EQ(microbatches.tensors(key)->at(3).value, 5u);
  microbatches.put(key, 3, packet, /*keeps_old=*/false);
  EXPECT_EQ(microbatches.tensors(key)->at(3).value, 6u);
  microbatches.add_again(packet);
  EXPECT_EQ(microbatches.tensors(key)->at(3).value, mix(6, 6));
  microbatches.put_data(key, 99);
  EXPECT_EQ(microbatches.data(key), 99u);
  microbatches.drop(key);
  EXPECT_EQ(microbatches.tensors(key), nullptr);
  EXPECT_EQ(microbatches.data(key), std::nullopt);
}

TEST(LinkTimings, GoWithTheNextReport) {
  LinkTimings timings;
  timings.note({1}, 1000, 500);
  timings.note({1}, 1000, 2000);
  timings.note({2}, 10, 10);
  proto::StepReport report;
  report.links.push_back({.seat = {2}, .bytes_sent = 77});
  timings.tell(report);
  ASSERT_EQ(report.links.size(), 2u);
  EXPECT_EQ(report.links[0].bytes_sent, 77u) << "what stood there stays";
  EXPECT_EQ(report.links[0].bytes_timed, 10u);
  EXPECT_EQ(report.links[1].bytes_timed, 2000u);
  EXPECT_DOUBLE_EQ(report.links[1].seconds_timed, 2.5);
  EXPECT_DOUBLE_EQ(report.links[1].fastest_bytes_per_second, 2000);
  proto::StepReport next;
  timings.tell(next);
  EXPECT_TRUE(next.links.empty());
}

TEST(SimDevice, DoesOneThingAfterTheOther) {
  const Instant now = Instant{} + seconds(100);
  SimDevice device;
  device.begin(now);
  EXPECT_EQ(device.work(now, seconds(2)), now + seconds(2));
  EXPECT_EQ(device.work(now, seconds(3)), now + seconds(5));
  EXPECT_FALSE(device.hangs(now));
  device.hang(now, seconds(10));
  EXPECT_TRUE(device.hangs(now + seconds(14)));
  EXPECT_FALSE(device.hangs(now + seconds(15)));
  EXPECT_EQ(device.work(now, seconds(1)), now + seconds(16));
}

}  // namespace
}  // namespace weft::sim
