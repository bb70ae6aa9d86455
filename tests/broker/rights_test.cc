// Whose jobs are whose, who is sent away, what is left of a job that has ended.
#include "tests/broker/world.h"

namespace weft::broker {
namespace {

// A client of its own key; `token`: the role that its token is for.
void come(World& world, ConnectionId connection, uint8_t who, proto::Role token = proto::Role::Submitter) {
  proto::Hello hello;
  hello.role = proto::Role::Submitter;
  hello.token = proto::TokenProof{.id = who};
  world.step(Introduced{.connection = connection,
                        .who = key(who),
                        .address = "test",
                        .hello = hello,
                        .verdict = TokenVerdict::Valid,
                        .token_role = token});
}

void submit_as(World& world, ConnectionId client, uint32_t stages = 2) {
  world.step(SubmissionChecked{client, proto::SubmitJob{.name = "job", .stages = stages}, {}});
}

template <typename M>
M last(const World& world, ConnectionId connection) {
  const auto found = world.messages<M>(connection);
  EXPECT_FALSE(found.empty()) << "nothing of that kind came";
  return found.empty() ? M{} : found.back();
}

TEST(Rights, AJobIsItsSubmittersAndAnAdmins) {
  World world;
  come(world, 100, 150);
  come(world, 101, 151);
  come(world, 102, 152, proto::Role::Admin);
  submit_as(world, 100);
  const std::vector<Message> questions = {proto::GetJob{1}, proto::GetResult{1}, proto::StopJob{1},
                                          proto::ResumeJob{1}, proto::RemoveJob{1}};
  for (const Message& question : questions) {
    world.receive(101, question);
    EXPECT_EQ(last<proto::Refusal>(world, 101).code, ErrorCode::NotFound) << name_of(question);
  }
  EXPECT_EQ(world.messages<proto::Refusal>(101).size(), questions.size());
  EXPECT_NE(world.states[1], JobState::Stopped);
  for (const ConnectionId client : {100, 102}) {
    world.receive(client, proto::GetJob{1});
    EXPECT_EQ(last<proto::JobStatus>(world, client).job, 1u);
    world.receive(client, proto::ListJobs{});
    EXPECT_EQ(last<proto::JobList>(world, client).jobs.size(), 1u);
  }
  world.receive(101, proto::ListJobs{});
  EXPECT_TRUE(last<proto::JobList>(world, 101).jobs.empty());
  // Events are asked of the store in the name of who asks.
  const auto effects = world.step(
      Received{101, std::make_shared<const Message>(proto::GetEvents{.job = 1, .from_sequence = 1})});
  const auto asked = std::find_if(effects.effects.begin(), effects.effects.end(),
                                  [](const Effect& e) { return std::holds_alternative<SendEvents>(e); });
  ASSERT_NE(asked, effects.effects.end());
  EXPECT_EQ(std::get<SendEvents>(*asked).whose, key(151));
  world.receive(102, proto::StopJob{1});
  EXPECT_EQ(world.states[1], JobState::Stopped);
  // The same once it has ended, out of the store.
  world.receive(101, proto::GetJob{1});
  EXPECT_EQ(world.messages<proto::JobStatus>(101).size(), 0u);
  world.receive(100, proto::GetJob{1});
  EXPECT_EQ(last<proto::JobStatus>(world, 100).state, JobState::Stopped);
}

TEST(Rights, AnEndedJobIsRemovedByWhoseItIs) {
  World world;
  come(world, 100, 150);
  come(world, 101, 151);
  submit_as(world, 100);
  world.receive(100, proto::RemoveJob{1});
  EXPECT_EQ(last<proto::Refusal>(world, 100).code, ErrorCode::InvalidArgument) << "it goes on";
  world.receive(100, proto::StopJob{1});
  world.receive(101, proto::RemoveJob{1});
  EXPECT_EQ(last<proto::Refusal>(world, 101).code, ErrorCode::NotFound);
  const size_t before = world.messages<proto::Done>(100).size();
  world.receive(100, proto::RemoveJob{1});
  EXPECT_EQ(world.messages<proto::Done>(100).size(), before + 1);
  for (const Message& question : {Message(proto::GetJob{1}), Message(proto::RemoveJob{1})}) {
    world.receive(100, question);
    EXPECT_EQ(last<proto::Refusal>(world, 100).code, ErrorCode::NotFound) << name_of(question);
  }
  submit_as(world, 100);
  EXPECT_EQ(last<proto::JobAccepted>(world, 100).job, 2u) << "its number is not given again";
}

TEST(Rights, OfOneKeySoManyJobsMayNotHaveEnded) {
  World world({}, {.software = "0.1.0", .limits = {.jobs_max_of_key = 3}});
  come(world, 100, 150);
  come(world, 101, 151);
  for (int i = 0; i < 4; ++i) submit_as(world, 100);
  EXPECT_EQ(world.messages<proto::JobAccepted>(100).size(), 3u);
  EXPECT_EQ(last<proto::Refusal>(world, 100).code, ErrorCode::ResourceExhausted);
  submit_as(world, 101);
  EXPECT_EQ(world.messages<proto::JobAccepted>(101).size(), 1u) << "another's are another's";
  world.receive(100, proto::StopJob{1});
  submit_as(world, 100);
  EXPECT_EQ(world.messages<proto::JobAccepted>(100).size(), 4u);
}

TEST(Rights, OfOneKeySoManyConnectionsAreThereAtOnce) {
  World world({}, {.software = "0.1.0", .limits = {.clients_max_of_key = 2}});
  come(world, 100, 150);
  come(world, 101, 150);
  come(world, 102, 150);
  EXPECT_EQ(last<proto::Refusal>(world, 102).code, ErrorCode::ResourceExhausted);
  come(world, 103, 151);
  EXPECT_FALSE(world.messages<proto::HelloAck>(103).empty()) << "another's";
  world.step(Disconnected{101, "test"});
  come(world, 104, 150);
  EXPECT_FALSE(world.messages<proto::HelloAck>(104).empty());
  world.join(1, 1);
  world.join(2, 2);
  const auto bulk = [&](ConnectionId connection, uint8_t who) {
    world.step(Introduced{.connection = connection,
                          .who = key(who),
                          .address = "test",
                          .hello = {.role = proto::Role::PeerBulk},
                          .verdict = TokenVerdict::None});
    EXPECT_FALSE(world.messages<proto::HelloAck>(connection).empty());
  };
  world.closed.clear();
  bulk(11, 1);
  bulk(12, 2);
  bulk(13, 1);
  EXPECT_TRUE(world.closed.empty());
  bulk(14, 1);
  EXPECT_EQ(world.closed, std::vector<ConnectionId>{11}) << "the oldest of its own";
  world.step(Disconnected{13, "test"});
  bulk(15, 1);
  EXPECT_EQ(world.closed.size(), 1u);
}

TEST(Rights, JobsComeInPagesTheNewestFirst) {
  World world;
  come(world, 100, 150);
  come(world, 101, 151);
  for (int i = 1; i <= 12; ++i) {
    submit_as(world, i % 3 == 0 ? 101 : 100);
    if (i <= 8) world.receive(i % 3 == 0 ? 101 : 100, proto::StopJob{static_cast<proto::JobNumber>(i)});
  }
  std::vector<proto::JobNumber> seen;
  proto::JobList page;
  do {
    world.receive(100, proto::ListJobs{.before = seen.empty() ? 0 : seen.back(), .count = 3});
    page = last<proto::JobList>(world, 100);
    ASSERT_LE(page.jobs.size(), 3u);
    for (const auto& job : page.jobs) seen.push_back(job.job);
  } while (page.more);
  EXPECT_EQ(seen, (std::vector<proto::JobNumber>{11, 10, 8, 7, 5, 4, 2, 1}));
}

TEST(Ended, LeavesMemoryAndIsKnownToAllThatCome) {
  World world;
  world.run_two_stages(3);
  for (uint64_t step = 1; step <= 3; ++step) world.report_step(step);
  world.report_checkpoint(3);
  ASSERT_EQ(world.states[1], JobState::Finished);
  EXPECT_TRUE(world.broker.open_jobs().empty());
  EXPECT_FALSE(world.broker.status(1));
  const auto state = world.store.load().value();
  Broker restarted({.software = "0.1.0"}, state);
  EXPECT_TRUE(restarted.open_jobs().empty());
  world.receive(100, proto::GetJob{1});
  const auto status = last<proto::JobStatus>(world, 100);
  EXPECT_EQ(status.state, JobState::Finished);
  EXPECT_EQ(status.step, 3u);
  EXPECT_DOUBLE_EQ(status.loss, 2.0);
  world.receive(100, proto::ResumeJob{1});
  EXPECT_EQ(last<proto::Refusal>(world, 100).code, ErrorCode::InvalidArgument) << "it is finished";
}

TEST(Ended, AFailedJobGoesOnFromItsCheckpointWhenAsked) {
  World world({}, {.software = "0.1.0", .failure_pause = {}, .failure_pause_max = {}, .failures_max = 2});
  world.copies = false;
  world.run_two_stages(2000);
  uint64_t step = 0;
  while (world.messages<proto::Command>(world.peers[0]).back().kind != proto::CommandKind::Checkpoint) {
    ASSERT_LT(step, 2000u);
    world.report_step(++step);
  }
  const uint64_t saved = world.messages<proto::Command>(world.peers[0]).back().step;
  while (step < saved) world.report_step(++step);
  world.report_checkpoint(saved);
  for (int failures = 0; world.states[1] != JobState::Failed; ++failures) {
    ASSERT_LT(failures, 3);
    world.receive(world.peers[0], proto::StageFailed{.run = 1,
                                                     .plan_version = world.version,
                                                     .error = {ErrorCode::Unavailable, "no way there"},
                                                     .unreachable = plan::Seat{1}});
    if (world.states[1] != JobState::Failed) world.plan_and_ready(2, 2000);
  }
  EXPECT_NE(world.events.back().text.find("weft resume 1"), std::string::npos);
  world.plannings.clear();
  world.receive(100, proto::ResumeJob{1});
  EXPECT_EQ(world.messages<proto::Done>(100).size(), 1u);
  ASSERT_EQ(world.plannings.size(), 1u);
  ASSERT_TRUE(world.plannings[0].checkpoint);
  EXPECT_EQ(world.plannings[0].checkpoint->step, saved);
  world.receive(100, proto::ListJobs{});
  ASSERT_EQ(last<proto::JobList>(world, 100).jobs.size(), 1u) << "not twice: it has not ended any more";
  EXPECT_EQ(last<proto::JobList>(world, 100).jobs[0].state, JobState::Planning);
  world.plan_and_ready(2, 2000);
  EXPECT_EQ(world.states[1], JobState::Running);
}

TEST(SentAway, ABannedKeyIsOutAndStaysOutUntilItIsLetIn) {
  World world;
  world.run_two_stages(100);
  come(world, 101, 151);
  world.receive(101, proto::BanPeer{"peer1"});
  EXPECT_EQ(last<proto::Refusal>(world, 101).code, ErrorCode::PermissionDenied);
  come(world, 102, 152, proto::Role::Admin);
  world.receive(102, proto::BanPeer{"nobody"});
  EXPECT_EQ(last<proto::Refusal>(world, 102).code, ErrorCode::NotFound);
  world.receive(102, proto::BanPeer{"peer1"});
  EXPECT_EQ(world.messages<proto::Done>(102).size(), 1u);
  EXPECT_EQ(world.closed.back(), 1u);
  EXPECT_EQ(world.states[1], JobState::Waiting);
  world.join(11, 1);
  EXPECT_EQ(last<proto::Refusal>(world, 11).code, ErrorCode::PermissionDenied);
  Broker restarted({.software = "0.1.0"}, world.store.load().value());
  const auto refused =
      restarted.step({world.now, 0}, Introduced{.connection = 5, .who = key(1), .address = "test"});
  EXPECT_TRUE(std::any_of(refused.effects.begin(), refused.effects.end(), [](const Effect& e) {
    return std::holds_alternative<Close>(e);
  })) << "a ban outlives the broker";
  world.receive(102, proto::BanPeer{"peer1", /*lift=*/true});
  world.join(12, 1);
  EXPECT_FALSE(world.messages<proto::HelloAck>(12).empty());
}

TEST(SentAway, WhatARevokedTokenAdmittedEnds) {
  World world;
  come(world, 100, 150);
  come(world, 101, 151);
  proto::Hello hello;
  hello.device =
      proto::DeviceReport{.device = "cpu:1", .threads = 1, .memory = {1 << 30}, .fingerprint = "f"};
  hello.token = proto::TokenProof{.id = 7};
  world.step(Introduced{1, key(1), "test", hello, TokenVerdict::Valid, proto::Role::Peer});
  world.step(TokensRevoked{{150, 7}});
  EXPECT_EQ(world.closed.size(), 2u);
  world.receive(100, proto::ListJobs{});
  EXPECT_TRUE(world.messages<proto::JobList>(100).empty());
  world.receive(101, proto::ListJobs{});
  EXPECT_FALSE(world.messages<proto::JobList>(101).empty()) << "another's token";
  hello.token.reset();
  world.step(Introduced{2, key(1), "test", hello, TokenVerdict::None, {}});
  EXPECT_EQ(last<proto::Refusal>(world, 2).code, ErrorCode::PermissionDenied) << "it is known no more";
}

// Nobody is forgotten who is here, was here lately or has a job; whoever else came longest ago shows a token.
TEST(SentAway, OfOneTokenSoManyKeysAreKnown) {
  const BrokerOptions options{
      .software = "0.1.0", .limits = {.keys_of_token_max = 3}, .pool = {.gone_max = 0}};
  World world({}, options);
  world.submit(100, 2);
  const auto is_admitted = [](World& to, ConnectionId connection, uint8_t who, TokenVerdict verdict) {
    to.join(connection, who, verdict);
    return !to.messages<proto::HelloAck>(connection).empty();
  };
  for (uint8_t who = 1; who <= 4; ++who) {
    EXPECT_TRUE(is_admitted(world, who, who, TokenVerdict::Valid));
    if (who != 2) world.step(Disconnected{who, "test"});
    world.step(Tick{});  // who is gone is listed no more
  }
  World restarted(world.store.load().value(), options);
  for (World* after : {&world, &restarted}) {
    EXPECT_FALSE(is_admitted(*after, 11, 1, TokenVerdict::None)) << "forgotten";
    EXPECT_EQ(last<proto::Refusal>(*after, 11).code, ErrorCode::PermissionDenied);
    EXPECT_FALSE(is_admitted(*after, 13, 3, TokenVerdict::None)) << "forgotten";
    EXPECT_TRUE(is_admitted(*after, 14, 4, TokenVerdict::None));
    EXPECT_TRUE(is_admitted(*after, 12, 2, TokenVerdict::None)) << "it was here all the time";
    after->step(Introduced{.connection = 101,
                           .who = key(200),
                           .address = "test",
                           .hello = {.role = proto::Role::Submitter},
                           .verdict = TokenVerdict::None});
    EXPECT_FALSE(after->messages<proto::HelloAck>(101).empty()) << "its job has not ended";
    EXPECT_TRUE(is_admitted(*after, 21, 1, TokenVerdict::Valid)) << "with a token, as at first";
  }
}

// Who fails stage after stage is left out, for longer and longer; others' jobs do not find it either.
// Why a peer leaves is shown until it is back, and whether it will be.
TEST(Away, APeerThatLeavesSaysWhy) {
  World world;
  world.join(1, 1);
  world.join(2, 2);
  come(world, 100, 150);
  const auto first = [&] {
    world.receive(100, proto::ListPeers{});
    for (const auto& peer : last<proto::PeerList>(world, 100).peers)
      if (peer.peer.digest.bytes[0] == 1) return std::pair(peer.state, peer.reason);
    return std::pair<std::string, std::string>("unknown", "");
  };
  using Said = std::pair<std::string, std::string>;
  world.receive(1, proto::Drain{.reason = "paused: on battery", .returns = true});
  EXPECT_EQ(first(), Said("draining", "paused: on battery"));
  world.step(Disconnected{1, "it left"});
  EXPECT_EQ(first(), Said("paused", "paused: on battery"));
  world.join(3, 1);
  EXPECT_EQ(first(), Said("pool", ""));
  world.receive(3, proto::Drain{});
  world.step(Disconnected{3, "it left"});
  EXPECT_EQ(first(), Said("left", ""));
  world.join(4, 1);
  world.step(Disconnected{4, "it was lost"});
  EXPECT_EQ(first(), Said("gone", "")) << "what it said before is over";
}

TEST(SentAway, WhoFailsStageAfterStageIsLeftOut) {
  World world({}, {.software = "0.1.0", .failure_pause = {}, .failure_pause_max = {}});
  world.join(1, 1);
  world.join(2, 2);
  for (int failures = 0; failures < 3; ++failures) {
    world.submit(100, 2);
    ASSERT_FALSE(world.plannings.empty());
    const StartPlanning request = world.plannings.back();
    const auto plan = plan_for(request, 2, 100);
    world.step(PlanningDone{request.job, request.plan_version, plan});
    world.receive(1, proto::StageFailed{.run = request.job,
                                        .plan_version = request.plan_version,
                                        .error = {ErrorCode::Internal, "it does not want to"}});
    world.receive(100, proto::StopJob{request.job});
  }
  world.plannings.clear();
  world.submit(100, 2);
  EXPECT_TRUE(world.plannings.empty()) << "one peer is left";
  world.receive(100, proto::ListPeers{});
  const auto peers = last<proto::PeerList>(world, 100).peers;
  EXPECT_TRUE(std::any_of(peers.begin(), peers.end(), [](const auto& p) { return p.state == "left out"; }));
  for (int i = 0; i < 62 && world.plannings.empty(); ++i) {
    for (const ConnectionId peer : {1, 2}) world.receive(peer, proto::Heartbeat{});
    world.wait(std::chrono::milliseconds(500));
  }
  EXPECT_FALSE(world.plannings.empty()) << "after half a minute it may try again";
}

// A slow plan holds nobody: the first that is made gets its peers, the other is made again with who is left.
TEST(Planning, ReservesNobody) {
  World world;
  for (uint8_t peer = 1; peer <= 4; ++peer) world.join(peer, peer);
  world.submit(100, 2);
  world.submit(100, 2);
  ASSERT_EQ(world.plannings.size(), 2u);
  const auto first = world.plannings[0], second = world.plannings[1];
  EXPECT_EQ(first.candidates.size(), 4u);
  EXPECT_EQ(second.candidates.size(), 4u);
  world.plannings.clear();
  world.step(PlanningDone{second.job, second.plan_version, plan_for(second, 2, 100)});
  EXPECT_EQ(world.states[second.job], JobState::Loading);
  world.step(PlanningDone{first.job, first.plan_version, plan_for(first, 2, 100)});
  ASSERT_EQ(world.plannings.size(), 1u) << "its peers had gone to the other";
  EXPECT_EQ(world.plannings[0].job, first.job);
  EXPECT_EQ(world.plannings[0].candidates.size(), 2u);
}

// What a peer says of a checkpoint that the broker has is believed of the peer alone.
TEST(Checkpoint, IsNotDroppedBecauseAPeerSaysThatItCannotBeHad) {
  World world({}, {.software = "0.1.0", .failure_pause = {}, .failure_pause_max = {}});
  world.join(3, 3);
  world.copies = false;
  world.run_two_stages(2000);
  uint64_t step = 0;
  while (world.messages<proto::Command>(world.peers[0]).back().kind != proto::CommandKind::Checkpoint)
    world.report_step(++step);
  const uint64_t saved = world.messages<proto::Command>(world.peers[0]).back().step;
  while (step < saved) world.report_step(++step);
  world.report_checkpoint(saved);
  world.step(Disconnected{world.peers[1], "gone"});
  ASSERT_FALSE(world.plannings.empty());
  const auto request = world.plannings.back();
  world.plannings.clear();
  world.step(PlanningDone{request.job, request.plan_version, plan_for(request, 2, 2000)});
  const ConnectionId liar = request.candidates[0].peer.digest.bytes[0];
  const auto effects =
      world.step(Received{liar, std::make_shared<const Message>(proto::StageFailed{
                                    .run = 1,
                                    .plan_version = request.plan_version,
                                    .error = {ErrorCode::NotFound, "there is no such blob"}})});
  EXPECT_TRUE(std::any_of(effects.effects.begin(), effects.effects.end(), [](const Effect& e) {
    return std::holds_alternative<VerifyBlobs>(e);
  })) << "the broker looks for itself";
  EXPECT_EQ(world.broker.status(1)->checkpoint_step, saved);
  world.step(BlobsVerified{.job = 1, .step = saved, .bad = 0});
  EXPECT_EQ(world.broker.status(1)->checkpoint_step, saved);
  world.step(BlobsVerified{.job = 1, .step = saved, .bad = 1});
  EXPECT_EQ(world.broker.status(1)->checkpoint_step, 0u) << "its own disk is believed";
}

TEST(Checkpoint, OfBlobsThatAreNotThereBreaksTheProtocol) {
  World world;
  world.run_two_stages(100);
  world.step(Received{1,
                      std::make_shared<const Message>(proto::CheckpointReport{
                          .run = 1, .plan_version = world.version, .step = 1, .tensors = {}}),
                      /*bytes=*/{}, /*blobs_missing=*/3});
  EXPECT_EQ(world.closed, std::vector<ConnectionId>{1});
  EXPECT_NE(last<proto::Refusal>(world, 1).message.find("3 tensors were not uploaded"), std::string::npos);
}

}  // namespace
}  // namespace weft::broker
