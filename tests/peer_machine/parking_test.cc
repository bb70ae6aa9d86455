// What a peer keeps of a served model's stage when it is released, and when another plan takes it over.
#include <functional>

#include "dag/op_table.h"
#include "tests/peer_machine/shell.h"

namespace weft::test {
namespace {

using namespace std::chrono_literals;
using peer::TaskKind;
using proto::ServeProgress;

const std::vector<dag::RowSpec> kEdges{{"pieces", dag::DType::I64, 6}, {"hidden", dag::DType::F32, 16}};

proto::AssignStage serving(uint32_t seat, proto::PlanVersion version) {
  dag::GraphBuilder builder(dag::op_table());
  const dag::ValueId x = builder.input("x", {dag::DType::F32, {16}});
  const dag::ValueId w = builder.initializer("w0", {dag::DType::F32, {16}}, dag::InitializerRole::Parameter);
  builder.output("y", builder.add(dag::OpKind::Add, {x, w}), dag::OutputRole::Prediction);
  proto::AssignStage assign;
  assign.run = 1;
  assign.plan_version = version;
  assign.seat = {seat};
  assign.stage_count = 2;
  assign.tensors = {tensor_of("w0", "a")};
  proto::ServeProgram& serve = assign.serve.emplace();
  serve.graph = std::make_shared<const dag::Graph>(builder.finish());
  serve.ranges =
      seat == 0 ? std::vector<dag::PartRange>{{0, 1}, {2, 3}} : std::vector<dag::PartRange>{{1, 2}};
  serve.rows_max = 8;
  serve.passes_max = 3;
  serve.sequences_max = 4;
  serve.positions_max = 100;
  assign.links.push_back({.seat = {1 - seat}});
  return assign;
}

struct Serving : Shell {
  explicit Serving(uint32_t seat) {
    edges = kEdges;
    join();
    load(serving(seat, 1));
    told.clear();
  }
  void release(proto::PlanVersion version = 1) {
    say(proto::ReleaseStage{.run = 1, .plan_version = version});
  }
  void assign(const proto::AssignStage& assignment) {
    runner.reset();
    say(assignment);
  }
  // Of the stage that was assigned last.
  void become_ready() {
    ASSERT_TRUE(runner && links);
    act(peer.on_runner_made(now, runner->generation, peer::RunnerSize{Bytes{100}, {}, edges}));
    act(peer.on_links_up(now, links->generation));
  }
  void request(uint64_t number, std::vector<int64_t> tokens, proto::PlanVersion version = 1) {
    say(proto::ServeRequest{
        .run = 1, .plan_version = version, .request = number, .tokens = std::move(tokens), .tokens_max = 10});
  }
  void finish(uint64_t generation, const peer::Task& task, peer::TaskOutcome outcome = {}) {
    act(peer.on_task_done(now, generation, task, outcome));
  }
  peer::RunTask take_task() {
    const peer::RunTask task = tasks.front();
    tasks.pop_front();
    return task;
  }
  void live(Duration time) {
    for (; time > Duration{}; time -= 1s) {
      welcome();
      tick(1s);
    }
  }
};

ServeProgress drawn(uint64_t number, uint64_t first, std::vector<int64_t> tokens) {
  ServeProgress progress{.run = 1, .plan_version = 1, .request = number, .first = first};
  for (const int64_t token : tokens) progress.tokens.push_back({.token = token});
  return progress;
}

TEST(Parking, TheSameStageIsTakenOverAndNothingIsFetched) {
  Serving shell(1);
  const uint64_t before = shell.peer.generation();
  shell.release();
  EXPECT_EQ(shell.parked, std::vector<uint64_t>{before});
  EXPECT_FALSE(shell.links.has_value());
  proto::AssignStage next = serving(1, 2);
  next.links.front().peer.digest.bytes[0] = 7;  // beside somebody else
  shell.assign(next);
  EXPECT_TRUE(shell.fetches.empty());
  ASSERT_EQ(shell.taken.size(), 1u);
  EXPECT_EQ(shell.taken.front().from, before);
  EXPECT_EQ(shell.taken.front().generation, shell.peer.generation());
  EXPECT_EQ(shell.taken.front().assignment->plan_version, 2u);
  shell.become_ready();
  ASSERT_EQ(shell.told_of<proto::StageReady>().size(), 1u);
  EXPECT_EQ(shell.told_of<proto::StageReady>().front().plan_version, 2u);
  shell.live(60s);
  EXPECT_EQ(shell.runners_dropped, 0u);
}

TEST(Parking, SoIsOneThatIsAssignedAnewWithoutARelease) {
  Serving shell(1);
  shell.assign(serving(1, 2));
  EXPECT_EQ(shell.taken.size(), 1u);
  EXPECT_EQ(shell.runners_dropped, 0u);
}

TEST(Parking, AnotherStageIsMadeAnew) {
  const std::vector<std::pair<const char*, std::function<void(proto::AssignStage&)>>> kOthers{
      {"another run", [](auto& assign) { assign.run = 2; }},
      {"another seat", [](auto& assign) { assign = serving(0, 2); }},
      {"more stages",
       [](auto& assign) {
         assign.stage_count = 3;
         assign.links.push_back({.seat = {2}});
       }},
      {"other parts",
       [](auto& assign) {
         assign.serve->ranges = {{1, 3}};
       }},
      {"other limits", [](auto& assign) { assign.serve->positions_max = 99; }},
      {"other weights", [](auto& assign) { assign.tensors = {tensor_of("w0", "b")}; }},
      {"no weights", [](auto& assign) { assign.tensors.clear(); }},
      {"another graph",
       [](auto& assign) {
         dag::GraphBuilder builder(dag::op_table());
         const dag::ValueId x = builder.input("x", {dag::DType::F32, {16}});
         builder.output("y", builder.add(dag::OpKind::Mul, {x, x}), dag::OutputRole::Prediction);
         assign.serve->graph = std::make_shared<const dag::Graph>(builder.finish());
       }},
  };
  for (const auto& [what, change] : kOthers) {
    SCOPED_TRACE(what);
    Serving shell(1);
    shell.release();
    proto::AssignStage next = serving(1, 2);
    change(next);
    shell.assign(next);
    shell.answer_fetches();
    EXPECT_TRUE(shell.taken.empty());
    EXPECT_EQ(shell.runners_dropped, 1u);
    EXPECT_TRUE(shell.runner.has_value());
  }
}

TEST(Parking, AnEntryThatIsToGuessOtherwiseIsMadeAnew) {
  using Draft = std::optional<proto::ServeDraft>;
  const auto is_taken = [](const Draft& before, const Draft& after) {
    Serving shell(0);
    proto::AssignStage assign = serving(0, 2);
    assign.serve->draft = before;
    shell.assign(assign);
    shell.answer_fetches();
    shell.become_ready();
    shell.taken.clear();
    assign.plan_version = 3;
    assign.serve->draft = after;
    shell.assign(assign);
    return !shell.taken.empty();
  };
  const auto graph = serving(0, 1).serve->graph, equal = serving(0, 1).serve->graph;
  const Draft ngram = proto::ServeDraft{.kind = plan::DraftKind::Ngram};
  const Draft half = proto::ServeDraft{.kind = plan::DraftKind::Coin, .right = 0.5};
  const Draft less = proto::ServeDraft{.kind = plan::DraftKind::Coin, .right = 0.4};
  const Draft model = proto::ServeDraft{.kind = plan::DraftKind::Decoder, .graph = graph, .tokens = "x"};
  Draft same = model, other = model;
  same->graph = equal;
  other->tokens = "y";
  EXPECT_TRUE(is_taken(ngram, ngram));
  EXPECT_TRUE(is_taken(half, half));
  EXPECT_TRUE(is_taken(model, same));
  EXPECT_FALSE(is_taken(ngram, {}));
  EXPECT_FALSE(is_taken({}, ngram));
  EXPECT_FALSE(is_taken(half, less));
  EXPECT_FALSE(is_taken(ngram, half));
  EXPECT_FALSE(is_taken(model, other));
}

TEST(Parking, WhatFailedByItselfIsNotKept) {
  Serving shell(1);
  for (uint32_t edge = 0; edge < kEdges.size(); ++edge) {
    proto::TensorHeader header{.run = 1, .plan_version = 1, .step = 1, .microbatch = 1, .edge = edge};
    header.program = proto::ProgramKind::Serve;
    header.spec = {kEdges[edge].dtype, {1, kEdges[edge].width}};
    bool accepted = false;
    shell.act(shell.peer.on_tensor(shell.now, shell.peer.generation(), {0}, header, accepted));
  }
  ASSERT_EQ(shell.tasks.size(), 1u);
  const peer::RunTask task = shell.take_task();
  shell.act(shell.peer.on_task_done(shell.now, task.generation, task.task,
                                    fail(ErrorCode::ResourceExhausted, "no memory")));
  shell.release();
  EXPECT_EQ(shell.runners_dropped, 1u);
  EXPECT_TRUE(shell.parked.empty());
}

TEST(Parking, WhatANeighbourFailedIsKept) {
  Serving shell(1);
  shell.act(shell.peer.on_link_failed(shell.now, shell.peer.generation(), {0}, {ErrorCode::Timeout, "gone"}));
  EXPECT_EQ(shell.told_of<proto::StageFailed>().size(), 1u);
  shell.release();
  EXPECT_EQ(shell.parked.size(), 1u);
  shell.assign(serving(1, 2));
  EXPECT_EQ(shell.taken.size(), 1u);
}

// It goes on only when all are ready, which the first request tells; nothing is drawn again.
TEST(Parking, TheEntryKnowsItsRequestsUnderTheNextPlan) {
  Serving shell(0);
  shell.request(5, {1, 2});
  const peer::RunTask first = shell.take_task();
  shell.finish(first.generation, first.task, {.served = {drawn(5, 2, {10, 11})}, .under_way = 1});
  EXPECT_EQ(shell.told_of<ServeProgress>().size(), 1u);
  shell.request(6, {1, 2, 3});
  const peer::RunTask late = shell.take_task();
  shell.requests.clear();
  shell.release();
  shell.told.clear();
  // It was under way when the stage was released.
  shell.finish(late.generation, late.task, {.served = {drawn(5, 4, {12})}, .under_way = 1});
  EXPECT_TRUE(shell.told.empty()) << "of a plan that is over";
  shell.assign(serving(0, 2));
  shell.become_ready();
  EXPECT_TRUE(shell.tasks.empty());
  shell.told.clear();
  shell.request(5, {1, 2, 10}, 2);
  EXPECT_TRUE(shell.requests.empty()) << "it is known";
  ASSERT_EQ(shell.tasks.size(), 1u);
  EXPECT_EQ(shell.tasks.front().task.kind, TaskKind::Begin);
  const auto told = shell.told_of<ServeProgress>();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told.front().plan_version, 2u);
  EXPECT_EQ(told.front().first, 3u);
  EXPECT_EQ(told.front().tokens.size(), 2u) << "11, and what came while it was parked";
  EXPECT_FALSE(told.front().end.has_value());
  shell.request(7, {4}, 2);
  EXPECT_EQ(shell.requests.size(), 1u) << "this one is new";
  // Nobody asks for request 6 again.
  shell.requests.clear();
  shell.live(11s);
  ASSERT_EQ(shell.requests.size(), 1u);
  const auto* cancel = std::get_if<proto::CancelRequest>(&shell.requests.front().what);
  ASSERT_NE(cancel, nullptr);
  EXPECT_EQ(cancel->request, 6u);
}

// As it comes when the runner has been taken over already.
TEST(Parking, WhatIsDoneLateIsTold) {
  Serving shell(0);
  shell.request(5, {1, 2});
  const peer::RunTask late = shell.take_task();
  shell.assign(serving(0, 2));
  shell.finish(late.generation, late.task, {.served = {drawn(5, 2, {10})}, .under_way = 1});
  shell.become_ready();
  shell.told.clear();
  shell.request(5, {1, 2}, 2);
  const auto told = shell.told_of<ServeProgress>();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told.front().tokens.size(), 1u);
}

TEST(Parking, ItIsForgottenAfterAWhile) {
  Serving shell(1);
  shell.release();
  shell.live(29s);
  EXPECT_EQ(shell.runners_dropped, 0u);
  shell.live(1s);
  EXPECT_EQ(shell.runners_dropped, 1u);
  shell.assign(serving(1, 2));
  EXPECT_TRUE(shell.taken.empty());
  EXPECT_EQ(shell.fetches.size(), 1u);
}

}  // namespace
}  // namespace weft::test
