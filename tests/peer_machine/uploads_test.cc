// Snapshots and predictions on their way to the broker.
#include "tests/peer_machine/shell.h"

namespace weft::test {
namespace {

using proto::CommandKind;

Shell loaded(const StageSpec& spec = {}) {
  Shell shell;
  shell.join(std::chrono::seconds(600));
  shell.load(assignment(spec));
  shell.told.clear();
  return shell;
}

TEST(Uploads, ARoundIsTransientAndPacedACheckpointDurable) {
  for (const bool durable : {false, true}) {
    Shell shell = loaded();
    shell.command(CommandKind::Advance, 1);
    shell.command(durable ? CommandKind::Checkpoint : CommandKind::CopyState, 1);
    shell.work();
    ASSERT_EQ(shell.offers.size(), 1u);
    EXPECT_EQ(shell.offers[0].durable, durable);
    shell.stored.insert(digest_of("w1@1"));
    const auto offer = shell.offers[0];
    shell.offers.clear();
    shell.act(shell.peer.on_missing(shell.now, offer.upload, std::vector<Digest>{digest_of("w0@1")}));
    ASSERT_EQ(shell.puts.size(), 1u) << "only what the broker lacks";
    EXPECT_EQ(shell.puts[0].durable, durable);
    EXPECT_EQ(shell.puts[0].rate, 1000u);
    EXPECT_TRUE(shell.told_of<proto::CheckpointReport>().empty());
    shell.answer_uploads();
    ASSERT_EQ(shell.told_of<proto::CheckpointReport>().size(), 1u);
    const auto report = shell.told_of<proto::CheckpointReport>()[0];
    EXPECT_EQ(report.step, 1u);
    EXPECT_EQ(report.tensors.size(), 2u);
    EXPECT_FALSE(report.failure.has_value());
  }
}

// What the newest heartbeat says of a checkpoint.
std::optional<proto::StageSaving> saving(Shell& shell) {
  shell.told.clear();
  shell.tick(std::chrono::seconds(3));
  const auto beats = shell.told_of<proto::Heartbeat>();
  EXPECT_EQ(beats.size(), 1u);
  return beats.empty() ? std::nullopt : beats[0].saving;
}

TEST(Uploads, AHeartbeatSaysHowMuchOfACheckpointTheBrokerHas) {
  Shell shell = loaded();
  EXPECT_FALSE(saving(shell));
  shell.command(CommandKind::Advance, 1);
  shell.command(CommandKind::Checkpoint, 1);
  shell.work();
  ASSERT_TRUE(saving(shell));
  EXPECT_EQ(saving(shell)->run, 1u);
  EXPECT_EQ(saving(shell)->plan_version, 1u);
  EXPECT_EQ(saving(shell)->step, 1u);
  EXPECT_EQ(saving(shell)->saved.value, 0) << "what the broker lacks is not known yet";
  const uint64_t upload = shell.offers[0].upload;
  shell.act(shell.peer.on_missing(shell.now, upload, std::vector<Digest>{digest_of("w1@1")}));
  EXPECT_EQ(saving(shell)->saved.value, 64) << "it had the other one";
  shell.act(shell.peer.on_sent(shell.now, upload, digest_of("w1@1"), 40));
  shell.act(shell.peer.on_sent(shell.now, upload, digest_of("w0@1"), 40));
  shell.act(shell.peer.on_sent(shell.now, upload + 1, digest_of("w1@1"), 50));
  EXPECT_EQ(saving(shell)->saved.value, 64 + 40) << "of what is put, and of this upload";
  shell.act(shell.peer.on_sent(shell.now, upload, digest_of("w1@1"), 1000));
  EXPECT_EQ(saving(shell)->saved.value, 128) << "no more than there is";
  shell.act(shell.peer.on_uploaded(shell.now, upload, digest_of("w1@1"), {}));
  EXPECT_EQ(shell.told_of<proto::CheckpointReport>().size(), 1u);
  EXPECT_FALSE(saving(shell));
}

TEST(Uploads, AHeartbeatSaysNothingOfCopiesAndTheOldestOfCheckpoints) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 1);
  shell.command(CommandKind::CopyState, 1);
  shell.work();
  EXPECT_FALSE(saving(shell));
  for (const uint64_t step : {2, 3}) {
    shell.command(CommandKind::Advance, step);
    shell.command(CommandKind::Checkpoint, step);
  }
  shell.work();
  EXPECT_EQ(saving(shell)->step, 2u);
  shell.lose_broker();
  shell.reconnect();
  shell.welcome();
  EXPECT_FALSE(saving(shell)) << "it has not been resumed";
}

TEST(Uploads, AFullDiskIsToldAndTheStageGoesOn) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 1);
  shell.command(CommandKind::Checkpoint, 1);
  shell.command(CommandKind::Advance, 2);
  shell.work();
  shell.act(shell.peer.on_missing(shell.now, shell.offers[0].upload, shell.offers[0].blobs));
  shell.act(shell.peer.on_uploaded(shell.now, shell.puts[0].upload, shell.puts[0].sha256,
                                   fail(ErrorCode::ResourceExhausted, "no space")));
  ASSERT_EQ(shell.told_of<proto::CheckpointReport>().size(), 1u);
  EXPECT_EQ(shell.told_of<proto::CheckpointReport>()[0].failure->code, ErrorCode::ResourceExhausted);
  EXPECT_TRUE(shell.told_of<proto::CheckpointReport>()[0].tensors.empty());
  shell.work();
  EXPECT_TRUE(shell.told_of<proto::StageFailed>().empty());
  EXPECT_EQ(shell.told_of<proto::StepReport>().size(), 2u);
  EXPECT_TRUE(shell.memory.contains(digest_of("w0@1"))) << "the copy stays";
}

TEST(Uploads, OtherFailuresAreTriedAgainAndThenTold) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 1);
  shell.command(CommandKind::CopyState, 1);
  shell.work();
  int attempts = 0;
  while (shell.told_of<proto::CheckpointReport>().empty() && attempts < 100) {
    if (shell.offers.empty()) {
      shell.now = std::max(shell.now, shell.peer.next_deadline(shell.now).value());
      shell.tick();
      continue;
    }
    ++attempts;
    const auto offer = shell.offers[0];
    shell.offers.clear();
    shell.act(shell.peer.on_missing(shell.now, offer.upload, fail(ErrorCode::Timeout, "slow")));
  }
  EXPECT_EQ(attempts, 5);
  EXPECT_TRUE(shell.told_of<proto::CheckpointReport>()[0].failure.has_value());
  EXPECT_TRUE(shell.told_of<proto::StageFailed>().empty());
}

TEST(Uploads, AnAnswerToAnEarlierAttemptDoesNothing) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 1);
  shell.command(CommandKind::CopyState, 1);
  shell.work();
  const auto first = shell.offers[0];
  shell.offers.clear();
  shell.act(shell.peer.on_missing(shell.now, first.upload, fail(ErrorCode::Timeout, "slow")));
  shell.act(shell.peer.on_missing(shell.now, first.upload, std::vector<Digest>{}));
  EXPECT_TRUE(shell.told_of<proto::CheckpointReport>().empty());
  shell.tick(std::chrono::seconds(1));
  shell.answer_uploads();
  EXPECT_EQ(shell.told_of<proto::CheckpointReport>().size(), 1u);
}

TEST(Uploads, APutThatFailedIsOfferedAgain) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 1);
  shell.command(CommandKind::CopyState, 1);
  shell.work();
  shell.act(shell.peer.on_missing(shell.now, shell.offers[0].upload, shell.offers[0].blobs));
  shell.offers.clear();
  ASSERT_EQ(shell.puts.size(), 2u);
  for (const auto& put : std::exchange(shell.puts, {}))
    shell.act(
        shell.peer.on_uploaded(shell.now, put.upload, put.sha256, fail(ErrorCode::Unavailable, "reset")));
  shell.tick(std::chrono::milliseconds(260));
  EXPECT_EQ(shell.offers.size(), 1u) << "one failure of the connection is one attempt";
  shell.answer_uploads();
  ASSERT_EQ(shell.told_of<proto::CheckpointReport>().size(), 1u);
  EXPECT_FALSE(shell.told_of<proto::CheckpointReport>()[0].failure.has_value());
}

TEST(Uploads, TheSameStepTwiceIsForgottenOnce) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 1);
  shell.command(CommandKind::CopyState, 1);
  shell.command(CommandKind::Checkpoint, 1);
  shell.work();
  shell.answer_uploads();
  EXPECT_EQ(shell.told_of<proto::CheckpointReport>().size(), 2u);
  shell.command(CommandKind::Advance, 2, 1, 3, /*keep_from=*/2);
  EXPECT_TRUE(shell.memory.empty());
}

// What the broker was seen to have, and this peer has still, is what the next copy may be packed on.
TEST(Uploads, ACopyIsPackedOnTheOneBefore) {
  using Bases = std::vector<std::optional<Digest>>;
  Shell shell = loaded();
  const auto bases = [&] {
    shell.work();
    const auto offer = shell.offers.at(0);
    shell.offers.clear();
    shell.act(shell.peer.on_missing(shell.now, offer.upload, offer.blobs));
    Bases found;
    for (const auto& put : shell.puts) {
      EXPECT_TRUE(put.packs);
      found.push_back(put.base);
    }
    shell.answer_uploads();
    return found;
  };
  shell.command(CommandKind::Advance, 1);
  shell.command(CommandKind::CopyState, 1);
  EXPECT_EQ(bases(), (Bases{std::nullopt, std::nullopt})) << "there is none before the first";
  shell.command(CommandKind::Advance, 2, 1, 2, /*keep_from=*/1);
  shell.command(CommandKind::CopyState, 2);
  EXPECT_EQ(bases(), (Bases{digest_of("w0@1"), digest_of("w1@1")}));
  shell.command(CommandKind::Advance, 3, 2, 4, /*keep_from=*/3);
  shell.command(CommandKind::CopyState, 3);
  EXPECT_EQ(bases(), (Bases{std::nullopt, std::nullopt})) << "the copy before is not kept any more";
}

TEST(Uploads, ABrokerThatCannotUnpackGetsCopiesAsTheyAre) {
  Shell shell;
  shell.act(shell.peer.start(shell.now));
  shell.act(shell.peer.on_connected(shell.now));
  proto::HelloAck ack{.minor = proto::kProtocolMinorOfPacking - 1};
  ack.heartbeat_interval = std::chrono::seconds(2);
  ack.lease = std::chrono::seconds(600);
  shell.say(ack);
  shell.load(assignment({}));
  for (uint64_t step = 1; step <= 2; ++step) {
    shell.command(CommandKind::Advance, step);
    shell.command(CommandKind::CopyState, step);
    shell.work();
    const auto offer = shell.offers.at(0);
    shell.offers.clear();
    shell.act(shell.peer.on_missing(shell.now, offer.upload, offer.blobs));
    for (const auto& put : shell.puts) EXPECT_TRUE(!put.packs && !put.base);
    shell.answer_uploads();
  }
}

TEST(Uploads, ARoundThatWasGivenUpForALaterOneIsNotUploaded) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 1);
  const uint64_t round = shell.command(CommandKind::CopyState, 1);
  shell.work();
  shell.command(CommandKind::Advance, 2, 1, /*settled=*/round);
  const auto offer = shell.offers[0];
  shell.act(shell.peer.on_missing(shell.now, offer.upload, offer.blobs));
  EXPECT_TRUE(shell.puts.empty());
}

TEST(Uploads, AStageWaitsWhenTooManySnapshotsAreNotThrough) {
  Shell shell = loaded();
  for (uint64_t step = 1; step <= 8; ++step) {
    shell.command(CommandKind::Advance, step);
    shell.command(CommandKind::CopyState, step);
  }
  shell.work();
  EXPECT_EQ(shell.told_of<proto::StepReport>().size(), 4u);
  EXPECT_EQ(shell.offers.size(), 4u);
  for (int i = 0; i < 10; ++i) {
    shell.answer_uploads();
    shell.work();
  }
  EXPECT_EQ(shell.told_of<proto::StepReport>().size(), 8u);
  EXPECT_EQ(shell.told_of<proto::CheckpointReport>().size(), 8u);
}

TEST(Uploads, PredictionsAreReportedOnceStored) {
  Shell shell = loaded({.predicts = true});
  shell.command(CommandKind::Predict, 0, 0, 0, 0, 3);
  for (auto& fetch : shell.data) fetch.key.step = 1;  // the data's position does not matter here
  while (!shell.data.empty() || !shell.tasks.empty()) {
    while (!shell.data.empty()) {
      auto fetch = shell.data.front();
      fetch.key.step = 0;
      shell.data.pop_front();
      shell.act(shell.peer.on_data(shell.now, fetch.generation, fetch.key, 0));
    }
    if (shell.tasks.empty()) continue;
    const auto task = shell.tasks.front();
    shell.tasks.pop_front();
    shell.finish_task(task);
  }
  EXPECT_TRUE(shell.told_of<proto::PredictionReport>().empty());
  shell.answer_uploads();
  const auto reports = shell.told_of<proto::PredictionReport>();
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_EQ(reports[2].outputs[0].sha256, digest_of("p2"));
  EXPECT_EQ(shell.memory.size(), 2u) << "only the weights stay";
}

TEST(Uploads, APredictionThatCannotBeStoredFailsTheStage) {
  Shell shell = loaded({.reads_data = false, .predicts = true});
  shell.command(CommandKind::Predict, 0, 0, 0, 0, 1);
  shell.work();
  ASSERT_EQ(shell.offers.size(), 1u);
  shell.act(shell.peer.on_missing(shell.now, shell.offers[0].upload,
                                  fail(ErrorCode::ResourceExhausted, "no space")));
  ASSERT_EQ(shell.told_of<proto::StageFailed>().size(), 1u);
  EXPECT_EQ(shell.told_of<proto::StageFailed>()[0].error.code, ErrorCode::ResourceExhausted);
}

TEST(Data, WrongDataFailsTheJobABrokenTransferIsTriedAgain) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 1);
  auto fetch = shell.data.front();
  shell.data.pop_front();
  shell.act(
      shell.peer.on_data(shell.now, fetch.generation, fetch.key, fail(ErrorCode::Unavailable, "reset")));
  EXPECT_TRUE(shell.told_of<proto::StageFailed>().empty());
  shell.data.clear();
  shell.tick(std::chrono::seconds(1));
  ASSERT_EQ(shell.data.size(), 1u);
  EXPECT_EQ(shell.data[0].key, fetch.key);
  shell.act(
      shell.peer.on_data(shell.now, fetch.generation, fetch.key, fail(ErrorCode::OutOfRange, "a label")));
  ASSERT_EQ(shell.told_of<proto::StageFailed>().size(), 1u);
  EXPECT_TRUE(shell.told_of<proto::StageFailed>()[0].permanent);
}

}  // namespace
}  // namespace weft::test
