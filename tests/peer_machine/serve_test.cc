// A stage of a served model: passes that come from the stage before it, requests at the entry, and what the
// broker is told of them, also when it was away.
#include <algorithm>
#include <functional>

#include "base/rng.h"
#include "dag/op_table.h"
#include "tests/peer_machine/shell.h"

namespace weft::test {
namespace {

using namespace std::chrono_literals;
using peer::ServeRequests;
using peer::ServeScript;
using peer::TaskKind;
using proto::ServeEnd;
using proto::ServeProgress;
using proto::TensorHeader;

constexpr uint32_t kPassesMax = 3;
const std::vector<dag::RowSpec> kEdges{
    {"pieces", dag::DType::I64, 6}, {"hidden", dag::DType::F32, 16}, {"mask", dag::DType::Bool, 2}};

// Stage `seat` of a ring of so many. The graph is of no matter to the machine.
proto::AssignStage serving(uint32_t seat, uint32_t stages) {
  dag::GraphBuilder builder(dag::op_table());
  const dag::ValueId x = builder.input("x", {dag::DType::F32, {16}});
  const dag::ValueId w = builder.initializer("w0", {dag::DType::F32, {16}}, dag::InitializerRole::Parameter);
  builder.output("y", builder.add(dag::OpKind::Add, {x, w}), dag::OutputRole::Prediction);
  proto::AssignStage assign;
  assign.run = 1;
  assign.plan_version = 1;
  assign.seat = {seat};
  assign.stage_count = stages;
  assign.tensors = {tensor_of("w0", "a")};
  proto::ServeProgram& serve = assign.serve.emplace();
  serve.graph = std::make_shared<const dag::Graph>(builder.finish());
  serve.ranges = {{1, 2}};
  if (seat == 0)
    serve.ranges =
        stages == 1 ? std::vector<dag::PartRange>{{0, 3}} : std::vector<dag::PartRange>{{0, 1}, {2, 3}};
  serve.rows_max = 8;
  serve.passes_max = kPassesMax;
  serve.sequences_max = 4;
  serve.positions_max = 100;
  for (uint32_t stage = 0; stage < stages; ++stage)
    if (stage != seat) assign.links.push_back({.seat = {stage}});
  return assign;
}

TensorHeader tensor_of_pass(uint64_t pass, uint32_t edge, uint32_t behind = 1, int64_t rows = 2) {
  TensorHeader header{.run = 1, .plan_version = 1, .step = pass, .microbatch = behind, .edge = edge};
  header.program = proto::ProgramKind::Serve;
  header.spec = {kEdges[edge].dtype, {rows, kEdges[edge].width}};
  return header;
}

struct Serving : Shell {
  Serving(uint32_t seat, uint32_t stages, peer::PeerOptions options = {}) : Shell(std::move(options)) {
    if (stages > 1) edges = kEdges;
    join();
    load(serving(seat, stages));
    told.clear();
  }
  bool come(const TensorHeader& header, uint32_t from = 0) {
    bool accepted = false;
    act(peer.on_tensor(now, peer.generation(), {from}, header, accepted));
    return accepted;
  }
  void come_whole(uint64_t pass, uint32_t behind = 1, uint32_t from = 0) {
    for (uint32_t edge = 0; edge < kEdges.size(); ++edge)
      EXPECT_TRUE(come(tensor_of_pass(pass, edge, behind), from));
  }
  void request(uint64_t number, size_t prompt, uint64_t tokens_max = 10) {
    say(proto::ServeRequest{.run = 1,
                            .plan_version = 1,
                            .request = number,
                            .tokens = std::vector<int64_t>(prompt, 7),
                            .tokens_max = tokens_max});
  }
  // The task at hand; what it came to.
  void finish(peer::TaskOutcome outcome = {}) {
    ASSERT_FALSE(tasks.empty());
    const peer::RunTask task = tasks.front();
    tasks.pop_front();
    act(peer.on_task_done(now, task.generation, task.task, outcome));
  }
  void fail_task(ErrorCode code) {
    ASSERT_FALSE(tasks.empty());
    act(peer.on_task_done(now, tasks.front().generation, tasks.front().task,
                          tl::unexpected(Error{code, "no"})));
  }
  std::vector<ServeProgress> take_progress() {
    auto progress = told_of<ServeProgress>();
    told.clear();
    return progress;
  }
  // The broker is there all the time.
  void live(Duration time) {
    for (; time > Duration{}; time -= 1s) {
      welcome();
      tick(1s);
    }
  }
  const ServeRequests& requests_here() const { return *peer.stage()->serve()->requests(); }
  std::optional<proto::StageFailed> failure() const {
    const auto failed = told_of<proto::StageFailed>();
    return failed.empty() ? std::nullopt : std::optional(failed.front());
  }
};

ServeProgress drawn(uint64_t number, uint64_t first, std::vector<int64_t> tokens,
                    std::optional<ServeEnd> end = {}) {
  ServeProgress progress{.run = 1, .plan_version = 1, .request = number, .first = first, .end = end};
  for (const int64_t token : tokens) progress.tokens.push_back({.token = token});
  return progress;
}
std::vector<int64_t> tokens_of(const ServeProgress& progress) {
  std::vector<int64_t> tokens;
  for (const proto::ServedToken& token : progress.tokens) tokens.push_back(token.token);
  return tokens;
}
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

TEST(Serve, RowsThatAreNotFiniteNameTheirSenderAndNoOneElse) {
  Serving shell(1, 3);
  shell.act(
      shell.peer.on_not_finite(shell.now, shell.peer.generation(), {0}, 5, {ErrorCode::OutOfRange, "a NaN"}));
  ASSERT_TRUE(shell.failure().has_value());
  EXPECT_EQ(shell.failure()->unreachable, plan::Seat{0});
  EXPECT_FALSE(shell.failure()->permanent);
  EXPECT_FALSE(shell.failure()->diverged);
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

// ---- requests

TEST(Serve, ARequestGoesToTheRunnerAndPassesAreBegun) {
  Serving shell(0, 1);
  shell.request(5, 3);
  ASSERT_EQ(shell.requests.size(), 1u);
  EXPECT_EQ(std::get<proto::ServeRequest>(shell.requests[0].what).request, 5u);
  ASSERT_EQ(shell.tasks.size(), 1u);
  EXPECT_EQ(shell.tasks.front().task.kind, TaskKind::Begin);
  shell.finish({.served = {drawn(5, 3, {11})}, .more = true});
  ASSERT_EQ(shell.tasks.size(), 1u) << "there is more to do";
  shell.finish({.served = {drawn(5, 4, {12, 13}, ServeEnd::Stop)}});
  EXPECT_TRUE(shell.tasks.empty());
  const auto progress = shell.take_progress();
  ASSERT_EQ(progress.size(), 2u);
  EXPECT_EQ(progress[0].first, 3u);
  EXPECT_EQ(tokens_of(progress[0]), (Tokens{11}));
  EXPECT_FALSE(progress[0].end.has_value());
  EXPECT_EQ(progress[1].first, 4u);
  EXPECT_EQ(tokens_of(progress[1]), (Tokens{12, 13}));
  EXPECT_EQ(progress[1].end, ServeEnd::Stop);
}

TEST(Serve, ARequestThatIsKnownIsToldAgainAndNotDrawnAnew) {
  Serving shell(0, 2);
  shell.request(5, 3);
  shell.finish({.served = {drawn(5, 3, {11, 12, 13})}, .under_way = 1});
  shell.take_progress();
  shell.request(5, 4);
  auto progress = shell.take_progress();
  ASSERT_EQ(progress.size(), 1u);
  EXPECT_EQ(progress[0].first, 4u);
  EXPECT_EQ(tokens_of(progress[0]), (Tokens{12, 13}));
  shell.request(5, 9);  // it knows more than was drawn: no token, and how far this is
  progress = shell.take_progress();
  ASSERT_EQ(progress.size(), 1u);
  EXPECT_EQ(progress[0].first, 6u);
  EXPECT_TRUE(progress[0].tokens.empty());
  shell.come_whole(1, 1, 1);
  shell.finish({.served = {drawn(5, 6, {14}, ServeEnd::Length)}});
  shell.take_progress();
  shell.request(5, 3);
  progress = shell.take_progress();
  ASSERT_EQ(progress.size(), 1u);
  EXPECT_EQ(tokens_of(progress[0]), (Tokens{11, 12, 13, 14}));
  EXPECT_EQ(progress[0].end, ServeEnd::Length);
  EXPECT_EQ(shell.requests.size(), 1u);
  EXPECT_TRUE(shell.tasks.empty());
}

TEST(Serve, CancellingGoesToTheRunnerAsLongAsTokensAreDrawn) {
  Serving shell(0, 1);
  shell.request(5, 3);
  shell.finish();
  shell.say(proto::CancelRequest{1, 1, 6});  // unknown
  EXPECT_TRUE(shell.tasks.empty());
  shell.say(proto::CancelRequest{1, 1, 5});
  ASSERT_EQ(shell.requests.size(), 2u);
  EXPECT_EQ(std::get<proto::CancelRequest>(shell.requests[1].what).request, 5u);
  ASSERT_EQ(shell.tasks.size(), 1u);
  shell.finish({.served = {drawn(5, 3, {}, ServeEnd::Cancelled)}});
  EXPECT_EQ(shell.take_progress().at(0).end, ServeEnd::Cancelled);
  shell.say(proto::CancelRequest{1, 1, 5});
  shell.request(5, 3, 0);  // none are wanted
  EXPECT_EQ(shell.requests.size(), 2u);
  EXPECT_TRUE(shell.tasks.empty() && shell.told.empty());
}

TEST(Serve, RequestsAreForTheEntryAlone) {
  Serving other(1, 2);
  other.request(5, 3);
  ASSERT_TRUE(other.failure().has_value());
  EXPECT_FALSE(other.failure()->unreachable.has_value());
  Shell training;
  training.join();
  training.load(assignment());
  training.say(proto::CancelRequest{1, 1, 5});
  EXPECT_EQ(training.told_of<proto::StageFailed>().size(), 1u);
  Serving entry(0, 2);
  entry.say(proto::ServeRequest{.run = 2, .plan_version = 1, .request = 1, .tokens = {1}, .tokens_max = 1});
  entry.say(proto::ServeRequest{.run = 1, .plan_version = 2, .request = 1, .tokens = {1}, .tokens_max = 1});
  EXPECT_TRUE(entry.requests.empty() && entry.told.empty()) << "of another run, of another plan";
}

TEST(Serve, RequestsBeyondTheBoundsAreToldAsFailed) {
  Serving shell(0, 1);
  for (uint64_t number = 1; number <= 4 + ServeRequests::kWaitingMax; ++number) shell.request(number, 1);
  EXPECT_EQ(shell.requests.size(), 4 + ServeRequests::kWaitingMax);
  EXPECT_TRUE(shell.told_of<ServeProgress>().empty());
  shell.request(5000, 1);
  const auto progress = shell.take_progress();
  ASSERT_EQ(progress.size(), 1u);
  EXPECT_EQ(progress[0].end, ServeEnd::Failed);
  EXPECT_EQ(progress[0].error.value().code, ErrorCode::ResourceExhausted);
  EXPECT_EQ(shell.requests.size(), 4 + ServeRequests::kWaitingMax);

  Serving wide(0, 1);
  for (uint64_t number = 1; number <= 17; ++number) wide.request(number, size_t{1} << 20);
  EXPECT_EQ(wide.requests.size(), 16u) << "of all prompts together";
  EXPECT_EQ(wide.take_progress().at(0).end, ServeEnd::Failed);
}

TEST(Serve, LongProgressComesInSeveralMessages) {
  Serving shell(0, 1);
  shell.request(5, 3);
  Tokens tokens(2 * ServeRequests::kTokensAtOnce + 1);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int64_t>(i);
  shell.finish({.served = {drawn(5, 3, tokens, ServeEnd::Length)}});
  Tokens told;
  const auto progress = shell.take_progress();
  EXPECT_EQ(progress.size(), 3u);
  for (const ServeProgress& one : progress) {
    EXPECT_EQ(one.first, 3 + told.size());
    const Tokens some = tokens_of(one);
    told.insert(told.end(), some.begin(), some.end());
    EXPECT_EQ(one.end.has_value(), told.size() == tokens.size());
  }
  EXPECT_EQ(told, tokens);
}

// ---- the broker goes and comes

TEST(Serve, WhatIsDrawnWhileTheBrokerIsAwayIsToldOnceItHasResumedTheStage) {
  Serving shell(0, 1);
  shell.request(5, 3);
  shell.request(6, 1);
  shell.finish({.served = {drawn(5, 3, {11}), drawn(6, 1, {21})}, .more = true});
  shell.take_progress();
  shell.lose_broker();
  shell.finish({.served = {drawn(5, 4, {12})}, .more = true});
  shell.finish({.served = {drawn(5, 5, {13}, ServeEnd::Stop)}, .more = true});
  EXPECT_TRUE(shell.told_of<ServeProgress>().empty());
  EXPECT_EQ(shell.tasks.size(), 1u) << "the stage goes on";
  shell.reconnect();
  shell.welcome();
  EXPECT_TRUE(shell.told_of<ServeProgress>().empty()) << "the broker has not taken the stage up yet";
  shell.say(proto::ResumeStage{.run = 1, .plan_version = 1});
  ASSERT_EQ(shell.told_of<proto::StageResumed>().size(), 1u);
  const auto progress = shell.take_progress();
  ASSERT_EQ(progress.size(), 2u);
  EXPECT_EQ(progress[0].first, 4u);
  EXPECT_EQ(tokens_of(progress[0]), (Tokens{12, 13}));
  EXPECT_EQ(progress[0].end, ServeEnd::Stop);
  EXPECT_EQ(progress[1].request, 6u) << "so that it notices if the last message was lost";
  EXPECT_EQ(progress[1].first, 2u);
  EXPECT_TRUE(progress[1].tokens.empty());
}

TEST(Serve, WhatHasEndedIsKnownForAMinute) {
  Serving shell(0, 1);
  shell.request(5, 3);
  shell.finish({.served = {drawn(5, 3, {11}, ServeEnd::Stop)}});
  shell.live(ServeRequests::kEndedFor - 1s);
  shell.take_progress();
  shell.request(5, 3);
  EXPECT_EQ(shell.take_progress().at(0).end, ServeEnd::Stop);
  shell.live(1s);
  EXPECT_EQ(shell.requests_here().ended(), 0u);
  shell.request(5, 3);
  EXPECT_EQ(shell.requests.size(), 2u) << "drawn anew";
}

TEST(Serve, OfWhatHasEndedTheNewestAreKept) {
  Serving shell(0, 1);
  const uint64_t count = ServeRequests::kEndedMax + 10;
  for (uint64_t number = 1; number <= count; ++number) {
    shell.request(number, 1);
    shell.finish({.served = {drawn(number, 1, {7}, ServeEnd::Stop)}});
  }
  EXPECT_EQ(shell.told_of<ServeProgress>().size(), count);
  EXPECT_EQ(shell.requests_here().ended(), ServeRequests::kEndedMax);
  EXPECT_EQ(shell.requests_here().open(), 0u);

  Serving wide(0, 1);
  const Tokens many(ServeRequests::kEndedTokensMax / 2, 7);
  for (uint64_t number = 1; number <= 3; ++number) {
    wide.request(number, 1);
    wide.finish({.served = {drawn(number, 1, many, ServeEnd::Length)}});
  }
  EXPECT_EQ(wide.requests_here().ended(), 2u);
}

}  // namespace
}  // namespace weft::test
