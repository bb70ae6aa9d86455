// A stage of a served model: how it is loaded, and passes that come from the stage before it.
#include <algorithm>
#include <functional>

#include "base/rng.h"
#include "tests/peer_machine/serving.h"

namespace weft::test {
namespace {

using namespace std::chrono_literals;
using peer::ServeRequests;
using peer::ServeScript;
using peer::TaskKind;
using proto::ServeEnd;
using proto::ServeProgress;
using proto::TensorHeader;
using Tokens = std::vector<int64_t>;

// ---- loading

TEST(Serve, AStageLoadsAsAnyOtherAndKeepsNoBlob) {
  Serving shell(1, 3);
  EXPECT_TRUE(shell.memory.empty()) << "its tensors lie with the runner and the broker";
  shell.tick(3s);
  const auto beats = shell.told_of<proto::Heartbeat>();
  ASSERT_EQ(beats.size(), 1u);
  EXPECT_FALSE(beats.front().work.has_value()) << "it trains nothing";
  shell.say(proto::ReleaseStage{.run = 1, .plan_version = 1});
  EXPECT_EQ(shell.peer.stages(), 0u);
  EXPECT_EQ(shell.runners_dropped, 0u);
  shell.live(30s);
  EXPECT_EQ(shell.runners_dropped, 1u);
}

TEST(Serve, AStageHasToFitWhatIsOffered) {
  for (const int64_t offer : {99, 100}) {
    peer::PeerOptions options;
    options.session.hello.device.emplace().memory = Bytes{offer};
    Shell shell(options);
    shell.join();
    shell.say(serving(0, 1));
    shell.answer_fetches();
    ASSERT_TRUE(shell.runner.has_value());
    shell.act(shell.peer.on_links_up(shell.now, shell.peer.generation()));
    shell.act(shell.peer.on_runner_made(shell.now, shell.peer.generation(), peer::RunnerSize{Bytes{100}}));
    const auto failed = shell.told_of<proto::StageFailed>();
    EXPECT_EQ(failed.size(), offer < 100 ? 1u : 0u);
    EXPECT_EQ(shell.told_of<proto::StageReady>().size(), offer < 100 ? 0u : 1u);
    for (const auto& one : failed) EXPECT_EQ(one.error.code, ErrorCode::ResourceExhausted);
  }
}

// What was stood by for is there at once, and what others fetch here stays until the first request.
TEST(Serve, TensorsThatAreHereAreNotFetchedAndAreLent) {
  Shell shell;
  shell.join();
  shell.say(proto::StandBy{.run = 1, .step = 0, .tensors = {tensor_of("w0", "a"), tensor_of("w1", "b")}});
  shell.answer_fetches();
  proto::AssignStage assign = serving(0, 1);
  assign.lends = {digest_of("b")};
  shell.load(assign);
  EXPECT_EQ(shell.memory, std::set<Digest>{digest_of("b")});
  shell.say(proto::ServeRequest{.run = 1, .plan_version = 1, .request = 1, .tokens = {1}, .tokens_max = 1});
  EXPECT_TRUE(shell.memory.empty());
}

TEST(Serve, AStageWithoutItsPlaceInARingIsRefused) {
  const std::vector<std::pair<const char*, std::function<void(proto::AssignStage&)>>> kBad{
      {"no link to the stage behind", [](auto& assign) { assign.links.pop_back(); }},
      {"no link to the stage before", [](auto& assign) { assign.links.erase(assign.links.begin()); }},
      {"a second range",
       [](auto& assign) {
         assign.serve->ranges.push_back({2, 3});
       }},
      {"no range", [](auto& assign) { assign.serve->ranges.clear(); }},
      {"a replica", [](auto& assign) { assign.seat.replica = 1; }},
  };
  for (const auto& [what, change] : kBad) {
    SCOPED_TRACE(what);
    Shell shell;
    shell.join();
    proto::AssignStage assign = serving(1, 3);
    change(assign);
    shell.say(assign);
    const auto failed = shell.told_of<proto::StageFailed>();
    ASSERT_EQ(failed.size(), 1u);
    EXPECT_TRUE(failed.front().permanent);
    EXPECT_FALSE(shell.links.has_value());
    bool accepted = false;
    shell.act(shell.peer.on_tensor(shell.now, shell.peer.generation(), {0}, tensor_of_pass(1, 0), accepted));
    EXPECT_FALSE(accepted);
  }
}

TEST(Serve, TheEntryOfARingHasTwoRangesAndOneThatIsAloneHasOne) {
  EXPECT_TRUE(ServeScript::check(serving(0, 2)));
  EXPECT_TRUE(ServeScript::check(serving(0, 1)));
  proto::AssignStage assign = serving(0, 2);
  assign.serve->ranges.pop_back();
  EXPECT_FALSE(ServeScript::check(assign));
  EXPECT_EQ(ServeScript::before(serving(0, 3)), plan::Seat{2});
  EXPECT_EQ(ServeScript::behind(serving(2, 3)), plan::Seat{0});
  EXPECT_EQ(ServeScript::before(serving(1, 3)), plan::Seat{0});
}

// ---- passes

TEST(Serve, APassIsComputedOnceAllItsEdgesAreThere) {
  Serving shell(1, 3);
  EXPECT_TRUE(shell.come(tensor_of_pass(1, 2)));
  EXPECT_TRUE(shell.come(tensor_of_pass(1, 0)));
  EXPECT_TRUE(shell.tasks.empty());
  EXPECT_TRUE(shell.come(tensor_of_pass(1, 1)));
  ASSERT_EQ(shell.tasks.size(), 1u);
  EXPECT_EQ(shell.tasks.front().task.kind, TaskKind::Pass);
  EXPECT_EQ(shell.tasks.front().task.key, (peer::MicrobatchKey{proto::ProgramKind::Serve, 1, 0}));
  shell.finish();
  EXPECT_TRUE(shell.peer.stage()->is_idle());
  EXPECT_TRUE(shell.told.empty());
}

// Numbers have gaps, edges come in any order, and of passes so many are under way at once.
TEST(Serve, PassesAreComputedOnceEachInTheOrderInWhichTheyWereSent) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    peer::PeerOptions options;
    options.stage.serve.tasks_ahead = static_cast<uint32_t>(1 + rng.below(2));
    Serving shell(2, 3, options);
    uint64_t number = 0;
    std::vector<uint64_t> sent, computed;
    std::vector<TensorHeader> on_the_way;
    while (computed.size() < 40) {
      if (sent.size() < 40 && sent.size() - computed.size() < kPassesMax) {
        const auto behind = static_cast<uint32_t>(1 + rng.below(3));
        sent.push_back(number += behind);
        for (uint32_t edge = 0; edge < kEdges.size(); ++edge)
          on_the_way.push_back(tensor_of_pass(number, edge, behind, edge == 0 ? 1 : 0));
      }
      if (!on_the_way.empty() && rng.below(4) != 0) {
        const auto at = on_the_way.begin() + static_cast<std::ptrdiff_t>(rng.below(on_the_way.size()));
        ASSERT_TRUE(shell.come(*at, 1));
        on_the_way.erase(at);
      } else if (!shell.tasks.empty()) {
        computed.push_back(shell.tasks.front().task.key.step);
        shell.finish();
      }
    }
    EXPECT_EQ(computed, sent);
    EXPECT_TRUE(shell.tasks.empty());
  }
}

TEST(Serve, WhatIsNoPassNamesTheStageBefore) {
  struct Case {
    const char* what;
    std::function<void(TensorHeader&)> change;
    uint32_t from = 0;
  };
  const std::vector<Case> kBad{
      {"from the stage behind", [](auto&) {}, 2},
      {"an edge that there is not", [](auto& h) { h.edge = 3; }},
      {"another type", [](auto& h) { h.spec.dtype = dag::DType::I64; }},
      {"another width", [](auto& h) { h.spec.shape[1] = 15; }},
      {"another rank", [](auto& h) { h.spec.shape.push_back(1); }},
      {"too many rows", [](auto& h) { h.spec.shape[0] = 9; }},
      {"no piece", [](auto& h) { h = tensor_of_pass(5, 0, 1, 0); }},
      {"too many pieces", [](auto& h) { h = tensor_of_pass(5, 0, 1, 65537); }},
      {"compressed", [](auto& h) { h.codec = *compress::parse("fp16"); }},
      {"backward", [](auto& h) { h.direction = proto::Direction::Backward; }},
      {"of a program", [](auto& h) { h.program = proto::ProgramKind::Train; }},
      {"behind no pass", [](auto& h) { h.microbatch = 0; }},
      {"behind one that was computed", [](auto& h) { h.microbatch = 2; }},
      {"of one that was computed", [](auto& h) { h.step = 4; }},
      {"long ago", [](auto& h) { h.step = 1; }},
      {"twice", [](auto& h) { h.step = 6; }},
      {"behind another one than its first edge says", [](auto& h) { h = tensor_of_pass(6, 2, 2); }},
  };
  for (const Case& bad : kBad) {
    SCOPED_TRACE(bad.what);
    Serving shell(1, 3);
    shell.come_whole(4, 4);
    EXPECT_TRUE(shell.come(tensor_of_pass(6, 1)));
    TensorHeader header = tensor_of_pass(5, 1);
    bad.change(header);
    EXPECT_FALSE(shell.come(header, bad.from));
    ASSERT_TRUE(shell.failure().has_value());
    EXPECT_EQ(shell.failure()->unreachable, plan::Seat{bad.from});
    EXPECT_EQ(shell.failure()->error.code, ErrorCode::InvalidArgument);
    EXPECT_FALSE(shell.failure()->permanent);
  }
}

TEST(Serve, MorePassesThanMayBeUnderWayNameTheStageBefore) {
  Serving shell(1, 3);
  shell.come_whole(1);  // is being computed
  constexpr uint64_t kFirst = peer::kServeHistoryPasses;
  for (uint64_t pass = 0; pass <= kPassesMax; ++pass)
    EXPECT_TRUE(shell.come(tensor_of_pass(kFirst + pass, 0)));
  EXPECT_FALSE(shell.failure().has_value());
  EXPECT_FALSE(shell.come(tensor_of_pass(kFirst + kPassesMax + 1, 0)));
  ASSERT_TRUE(shell.failure().has_value());
  EXPECT_EQ(shell.failure()->unreachable, plan::Seat{0});
}

// As many as all positions fill: 100, by 8 in each.
TEST(Serve, MoreHistoryThanThereMayBeNamesTheStageBefore) {
  Serving shell(1, 3);
  for (uint64_t pass = 1; pass <= 13; ++pass) EXPECT_TRUE(shell.come(tensor_of_pass(pass, 0)));
  EXPECT_TRUE(shell.come(tensor_of_pass(peer::kServeHistoryPasses, 0)));
  EXPECT_FALSE(shell.failure().has_value());
  EXPECT_FALSE(shell.come(tensor_of_pass(14, 0)));
  ASSERT_TRUE(shell.failure().has_value());
  EXPECT_EQ(shell.failure()->unreachable, plan::Seat{0});
}

TEST(Serve, APassBeforeTheRunnerIsThereIsRefused) {
  Shell shell;
  shell.join();
  shell.say(serving(1, 2));
  bool accepted = true;
  shell.act(shell.peer.on_tensor(shell.now, shell.peer.generation(), {0}, tensor_of_pass(1, 0), accepted));
  EXPECT_FALSE(accepted);
  ASSERT_EQ(shell.told_of<proto::StageFailed>().size(), 1u);
  EXPECT_EQ(shell.told_of<proto::StageFailed>().front().unreachable, plan::Seat{0});
}

TEST(Serve, APassOfAnotherPlanIsLetGo) {
  Serving shell(1, 3);
  TensorHeader header = tensor_of_pass(1, 0);
  header.plan_version = 2;
  EXPECT_FALSE(shell.come(header));
  EXPECT_FALSE(shell.failure().has_value());
}

TEST(Serve, ATaskThatFailsByWhatCameNamesTheStageBefore) {
  for (const ErrorCode code : {ErrorCode::InvalidArgument, ErrorCode::OutOfRange, ErrorCode::Corrupted,
                               ErrorCode::ResourceExhausted, ErrorCode::Unsupported}) {
    Serving shell(1, 3);
    shell.come_whole(1);
    shell.fail_task(code);
    ASSERT_TRUE(shell.failure().has_value());
    const bool is_of_sender = code != ErrorCode::ResourceExhausted && code != ErrorCode::Unsupported;
    EXPECT_EQ(shell.failure()->unreachable, is_of_sender ? std::optional(plan::Seat{0}) : std::nullopt);
  }
  Serving entry(0, 2);
  entry.request(1, 2);
  entry.fail_task(ErrorCode::InvalidArgument);
  ASSERT_TRUE(entry.failure().has_value());
  EXPECT_FALSE(entry.failure()->unreachable.has_value()) << "nobody sent what it began";
}

TEST(Serve, PassesThatDoNotComeRoundHaveADeadline) {
  peer::PeerOptions options;
  options.stage.serve.round_deadline = 30s;
  Serving shell(0, 3, options);
  shell.request(1, 2);
  shell.finish({.under_way = 1});
  shell.live(29s);
  EXPECT_FALSE(shell.failure().has_value());
  shell.come_whole(1, 1, 2);
  shell.finish({.under_way = 1});
  shell.live(29s);
  EXPECT_FALSE(shell.failure().has_value());
  shell.live(1s);
  const auto failed = shell.failure();
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->error.code, ErrorCode::Timeout);
  EXPECT_EQ(failed->unreachable, plan::Seat{2});
}

}  // namespace
}  // namespace weft::test
