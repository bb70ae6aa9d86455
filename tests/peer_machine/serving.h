// Stages of a served model in a Shell: what comes for them, and what their runner says.
#pragma once

#include "dag/op_table.h"
#include "tests/peer_machine/shell.h"

namespace weft::test {

inline constexpr uint32_t kPassesMax = 3;
inline const std::vector<dag::RowSpec> kEdges{
    {"pieces", dag::DType::I64, 6}, {"hidden", dag::DType::F32, 16}, {"mask", dag::DType::Bool, 2}};

// Stage `seat` of a ring of so many. The graph is of no matter to the machine.
inline proto::AssignStage serving(uint32_t seat, uint32_t stages) {
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

inline proto::TensorHeader tensor_of_pass(uint64_t pass, uint32_t edge, uint32_t behind = 1,
                                          int64_t rows = 2) {
  proto::TensorHeader header{.run = 1, .plan_version = 1, .step = pass, .microbatch = behind, .edge = edge};
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
  bool come(const proto::TensorHeader& header, uint32_t from = 0) {
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
  std::vector<proto::ServeProgress> take_progress() {
    auto progress = told_of<proto::ServeProgress>();
    told.clear();
    return progress;
  }
  // The broker is there all the time.
  void live(Duration time) {
    for (; time > Duration{}; time -= std::chrono::seconds(1)) {
      welcome();
      tick(std::chrono::seconds(1));
    }
  }
  const peer::ServeRequests& requests_here() const { return *peer.stage()->serve()->requests(); }
  std::optional<proto::StageFailed> failure() const {
    const auto failed = told_of<proto::StageFailed>();
    return failed.empty() ? std::nullopt : std::optional(failed.front());
  }
};

inline proto::ServeProgress drawn(uint64_t number, uint64_t first, std::vector<int64_t> tokens,
                                  std::optional<proto::ServeEnd> end = {}) {
  proto::ServeProgress progress{.run = 1, .plan_version = 1, .request = number, .first = first, .end = end};
  for (const int64_t token : tokens) progress.tokens.push_back({.token = token});
  return progress;
}
inline std::vector<int64_t> tokens_of(const proto::ServeProgress& progress) {
  std::vector<int64_t> tokens;
  for (const proto::ServedToken& token : progress.tokens) tokens.push_back(token.token);
  return tokens;
}

}  // namespace weft::test
