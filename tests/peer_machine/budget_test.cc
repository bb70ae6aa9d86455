// What a peer offers of its memory is what it takes: programs, copies of the state, what it stands by for.
#include "dag/op_table.h"
#include "tests/peer_machine/shell.h"

namespace weft::test {
namespace {

using proto::CommandKind;

peer::PeerOptions offering(int64_t bytes, int64_t host = 0) {
  peer::PeerOptions options;
  options.session.hello.device = proto::DeviceReport{.memory = {bytes}, .host_memory = {host}};
  return options;
}

// Trains w0 and w1, of 64 bytes each: a copy of the state takes 128. The shell's runner takes 100, and 10 for
// each of 2 microbatches.
constexpr int64_t kPrograms = 120, kCopy = 128;

proto::AssignStage training(const StageSpec& spec = {}) {
  proto::AssignStage assign = assignment(spec);
  const dag::TensorSpec pair{dag::DType::F32, {2}}, weight{dag::DType::F32, {16}};
  dag::GraphBuilder builder(dag::op_table());
  const dag::ValueId x = builder.input("x", pair), y = builder.input("y", pair);
  for (const char* name : {"w0", "w1"})
    builder.output(
        name,
        builder.add(dag::OpKind::Neg, {builder.initializer(name, weight, dag::InitializerRole::Parameter)}),
        dag::OutputRole::Gradient);
  builder.output("loss", builder.add(dag::OpKind::Add, {x, y}), dag::OutputRole::Prediction);
  proto::StageProgram& program = assign.programs[0];
  program.graph = std::make_shared<const dag::Graph>(builder.finish());
  program.segment_of_op.assign(program.graph->ops().size(), 0);
  return assign;
}

void round_of(Shell& shell, uint64_t step) {
  shell.command(CommandKind::Advance, step);
  shell.command(CommandKind::CopyState, step);
}

TEST(Budget, AStageThatTakesMoreThanIsOfferedIsRefused) {
  Shell shell(offering(kPrograms + kCopy - 1));
  shell.join();
  shell.say(training());
  shell.answer_fetches();
  ASSERT_TRUE(shell.runner.has_value());
  shell.act(shell.peer.on_runner_made(shell.now, shell.runner->generation,
                                      peer::RunnerSize{Bytes{100}, Bytes{10}}));
  const auto failed = shell.told_of<proto::StageFailed>();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].error.code, ErrorCode::ResourceExhausted);
  EXPECT_NE(failed[0].error.message.find("offers"), std::string::npos) << failed[0].error.message;
  EXPECT_FALSE(failed[0].permanent) << "another peer may offer more";
}

// Of a stage that serves: rows that it keeps for the one behind it.
TEST(Budget, WhatAStageKeepsOnTheHostCounts) {
  const int64_t kept = 50;
  for (const auto& [offer, host, fits] :
       {std::tuple{kPrograms + kCopy + kept, int64_t{0}, true},
        std::tuple{kPrograms + kCopy + kept - 1, int64_t{0}, false},
        std::tuple{kPrograms, kCopy + kept, true}, std::tuple{kPrograms, kCopy + kept - 1, false},
        std::tuple{kPrograms, kept - 1, false}}) {
    SCOPED_TRACE(std::to_string(offer) + " and " + std::to_string(host));
    Shell shell(offering(offer, host));
    shell.join();
    shell.say(training());
    shell.answer_fetches();
    ASSERT_TRUE(shell.runner.has_value());
    shell.act(shell.peer.on_links_up(shell.now, shell.peer.generation()));
    shell.act(shell.peer.on_runner_made(
        shell.now, shell.runner->generation,
        peer::RunnerSize{.persistent = Bytes{100}, .microbatch = Bytes{10}, .on_host = Bytes{kept}}));
    const auto failed = shell.told_of<proto::StageFailed>();
    ASSERT_EQ(failed.empty(), fits);
    if (!fits) {
      EXPECT_EQ(failed[0].error.code, ErrorCode::ResourceExhausted);
    }
    const auto ready = shell.told_of<proto::StageReady>();
    ASSERT_EQ(ready.size(), fits ? 1u : 0u);
    if (fits) {
      EXPECT_EQ(ready[0].persistent, Bytes{host == 0 ? 100 + kept : 100});
    }
  }
}

// Whatever a broker assigns: not a byte of it is asked for.
TEST(Budget, TensorsThatAreMoreThanIsOfferedAreNotFetched) {
  for (const auto& [offer, host, fits] : {std::tuple{int64_t{127}, int64_t{0}, false},
                                          {int64_t{128}, int64_t{0}, true},
                                          {int64_t{100}, int64_t{27}, false},
                                          {int64_t{100}, int64_t{28}, true}}) {
    Shell shell(offering(offer, host));
    shell.join();
    shell.say(training());
    EXPECT_EQ(shell.fetching().empty(), !fits) << offer;
    const auto failed = shell.told_of<proto::StageFailed>();
    ASSERT_EQ(failed.size(), fits ? 0u : 1u) << offer;
    if (!fits) {
      EXPECT_EQ(failed[0].error.code, ErrorCode::ResourceExhausted);
    }
  }
}

// A stage that has failed is nothing to hand over, whether its broker takes it away or not.
TEST(Budget, WhoseStageFailedLeavesAtOnce) {
  Shell shell(offering(1));
  shell.join();
  shell.say(training());
  ASSERT_EQ(shell.told_of<proto::StageFailed>().size(), 1u);
  shell.act(shell.peer.request_drain(shell.now));
  EXPECT_EQ(shell.peer.state(), peer::Session::State::Left);
}

TEST(Budget, AsManyCopiesAreKeptAsThereIsRoomFor) {
  for (const int64_t host : {int64_t{0}, 3 * kCopy}) {
    Shell shell(host == 0 ? offering(kPrograms + 3 * kCopy + 5) : offering(kPrograms, host));
    shell.join();
    shell.load(training());
    for (uint64_t step = 1; step <= 10; ++step) {
      round_of(shell, step);
      shell.work();
      shell.answer_uploads();
      EXPECT_LE(shell.memory.size(), 2u * 3);
    }
    EXPECT_EQ(shell.memory.size(), 2u * 3);
    EXPECT_TRUE(shell.memory.contains(digest_of("a"))) << "the recovery point is kept";
    EXPECT_TRUE(shell.memory.contains(digest_of("w0@10")));
  }
}

TEST(Budget, WhereThereIsRoomForOneCopyItIsMadeBeforeTheNext) {
  Shell shell(offering(kPrograms + kCopy));
  shell.join();
  shell.load(training());
  EXPECT_EQ(shell.memory.size(), 2u) << "what the stage began with";
  round_of(shell, 1);
  round_of(shell, 2);
  shell.work();
  EXPECT_EQ(shell.memory, (std::set<Digest>{digest_of("w0@1"), digest_of("w1@1")}))
      << "the one before went first, and the next waits until this one is at the broker";
  EXPECT_EQ(shell.peer.stage()->completed_step(), 2u) << "steps do not wait";
  shell.answer_uploads();
  shell.work();
  EXPECT_EQ(shell.memory, (std::set<Digest>{digest_of("w0@2"), digest_of("w1@2")}));
  shell.answer_uploads();
  EXPECT_EQ(shell.told_of<proto::CheckpointReport>().size(), 2u);
}

TEST(Budget, WhatIsOnItsWayToTheBrokerCountsBesideWhatIsKept) {
  Shell shell(offering(kPrograms + 2 * kCopy + 5));
  shell.join();
  shell.load(training());
  const auto copies = [](const std::vector<std::string>& steps) {
    std::set<Digest> digests;
    for (const std::string& step : steps)
      for (const char* name : {"w0@", "w1@"}) digests.insert(digest_of(name + step));
    return digests;
  };
  for (uint64_t step = 1; step <= 3; ++step) {
    round_of(shell, step);
    shell.work();
    EXPECT_LE(shell.memory.size(), 2u * 2) << step;
  }
  EXPECT_EQ(shell.memory, copies({"1", "2"})) << "the third waits, what the stage began with made room";
  shell.answer_uploads();
  shell.work();
  EXPECT_EQ(shell.memory, copies({"2", "3"}))
      << "the first came to the broker while the second was on its way";
  shell.answer_uploads();
  EXPECT_EQ(shell.told_of<proto::CheckpointReport>().size(), 3u);
}

TEST(Budget, WhatIsStoodByForMakesRoomForTheNewest) {
  Shell shell(offering(2 * 64 + 10));
  shell.join();
  const auto list = [](uint64_t step, std::vector<std::string> contents) {
    proto::StandBy message{.run = 1, .step = step, .tensors = {}, .rate = 0};
    for (const std::string& content : contents) message.tensors.push_back(tensor_of("w", content));
    return message;
  };
  shell.say(list(1, {"a", "b"}));
  shell.answer_fetches();
  shell.say(list(2, {"a", "c"}));
  EXPECT_EQ(shell.memory, std::set<Digest>{digest_of("a")}) << "what both have stays";
  EXPECT_EQ(shell.fetching(), std::set<std::string>{"c"});
  shell.answer_fetches();
  EXPECT_EQ(shell.told_of<proto::StandingBy>().size(), 2u);
  shell.say(list(3, {"d", "e", "f"}));
  EXPECT_TRUE(shell.fetching().empty()) << "more than is offered";
}

}  // namespace
}  // namespace weft::test
