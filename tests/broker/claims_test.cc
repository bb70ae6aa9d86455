// What stages say of their work and is not what was asked for.
#include "broker/run/claims.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/broker/programs.h"
#include "tests/broker/world.h"

namespace weft::broker {
namespace {

using proto::ProgramKind;

proto::TensorReference tensor(const std::string& name, dag::StateSlot slot = dag::StateSlot::Value,
                              dag::Shape shape = {2, 3}, dag::DType dtype = dag::DType::F32) {
  return {.key = dag::of_initializer(name, slot), .spec = {dtype, std::move(shape)}, .sha256 = {}};
}

// A stage that trains w and b by Adam, and has the loss.
proto::AssignStage assignment() {
  proto::AssignStage stage;
  stage.training.optimizer.type = dag::OptimizerType::Adam;
  stage.programs.push_back(
      test::make_program(ProgramKind::Train, {.trained = {tensor("w"), tensor("b")}, .losses = 1}));
  stage.programs.push_back(
      test::make_program(ProgramKind::Evaluate, {.losses = 2, .corrects = 1, .counteds = 0}));
  return stage;
}

std::vector<proto::TensorReference> whole_state() {
  std::vector<proto::TensorReference> state;
  for (const char* name : {"w", "b"})
    for (const auto slot : {dag::StateSlot::Value, dag::StateSlot::M, dag::StateSlot::V})
      state.push_back(tensor(name, slot));
  return state;
}

std::string refusal(const Status& status) {
  if (status) return "";
  EXPECT_EQ(status.error().code, ErrorCode::InvalidArgument);
  return status.error().message;
}

TEST(StageClaims, ASnapshotHasEachTrainedTensorOnceAndNoOther) {
  const StageClaims claims(assignment());
  const auto check = [&](std::vector<proto::TensorReference> tensors) {
    return refusal(claims.check(proto::CheckpointReport{.tensors = std::move(tensors)}));
  };
  EXPECT_EQ(check(whole_state()), "");
  auto reversed = whole_state();
  std::reverse(reversed.begin(), reversed.end());
  EXPECT_EQ(check(reversed), "");
  EXPECT_NE(check({}), "");  // it ended a job as completed, its stage untrained
  for (size_t i = 0; i < whole_state().size(); ++i) {
    SCOPED_TRACE(i);
    auto short_of_one = whole_state(), twice = whole_state(), other = whole_state(), typed = whole_state(),
         shaped = whole_state(), slot = whole_state();
    short_of_one.erase(short_of_one.begin() + static_cast<ptrdiff_t>(i));
    EXPECT_NE(check(short_of_one), "");
    twice.push_back(twice[i]);
    EXPECT_NE(check(twice), "");
    twice.erase(twice.begin() + static_cast<ptrdiff_t>((i + 1) % 6));
    EXPECT_NE(check(twice), "");
    other[i].key.name = "v";
    EXPECT_NE(check(other), "");
    typed[i].spec.dtype = dag::DType::I64;
    EXPECT_NE(check(typed), "");
    shaped[i].spec.shape = {3, 2};
    EXPECT_NE(check(shaped), "");
    slot[i].key.slot = dag::StateSlot::Momentum;
    EXPECT_NE(check(slot), "");
  }
  // Why it could not be made needs no tensors.
  EXPECT_EQ(refusal(claims.check(proto::CheckpointReport{.failure = Error{ErrorCode::Unavailable, "x"}})),
            "");
}

// An empty one was taken as one of those that a microbatch waits for, which was then done without them.
TEST(StageClaims, PredictionsComeFromStagesThatPredict) {
  const StageClaims claims(assignment());
  EXPECT_NE(refusal(claims.check(proto::PredictionReport{.microbatch = 3})), "");
}

TEST(StageClaims, LossesComeFromTheStageThatHasTheLossAlone) {
  const StageClaims with(assignment());
  proto::AssignStage other = assignment();
  other.programs = {test::make_program(ProgramKind::Train, {.trained = {tensor("w")}})};
  const StageClaims without(other);
  proto::StepReport report;
  report.squares = {1.0, 0.0};
  EXPECT_EQ(refusal(without.check_losses(report, 2)), "");
  EXPECT_NE(refusal(with.check_losses(report, 2)), "");
  report.losses = {1.0, 2.0};
  EXPECT_EQ(refusal(with.check_losses(report, 2)), "");
  EXPECT_NE(refusal(without.check_losses(report, 2)), "");
  EXPECT_NE(refusal(with.check_losses(report, 3)), "");
  report.losses[0] = std::numeric_limits<double>::quiet_NaN();  // a run that diverges is no lie
  report.squares[0] = std::numeric_limits<double>::infinity();
  EXPECT_EQ(refusal(with.check_losses(report, 2)), "");
  report.squares[1] = -1e-300;
  EXPECT_NE(refusal(with.check_losses(report, 2)), "");
}

TEST(StageClaims, AnEvaluationHasWhatTheStageHasOfEachMicrobatch) {
  const StageClaims claims(assignment());
  const auto check = [&](std::vector<double> loss, std::vector<double> correct, std::vector<double> counted) {
    return refusal(claims.check(proto::EvaluationReport{
        .loss = std::move(loss), .correct = std::move(correct), .counted = std::move(counted)}));
  };
  EXPECT_EQ(check({1, 2, 3, 4}, {5, 0}, {}), "");
  EXPECT_NE(check({1, 2, 3}, {5}, {}), "");
  EXPECT_NE(check({1, 2, 3, 4}, {5}, {}), "");
  EXPECT_NE(check({1, 2}, {}, {}), "");
  EXPECT_NE(check({}, {}, {}), "");
  EXPECT_NE(check({1, 2}, {5}, {5}), "");
  EXPECT_NE(check({1, 2}, {-1}, {}), "");
  EXPECT_NE(check({1, 2}, {std::numeric_limits<double>::infinity()}, {}), "");
}

// As the broker takes it: who says it is not believed, and the run goes on with somebody else.
TEST(StageClaims, WhoSendsASnapshotThatIsNoneOfItsOwnIsGivenUp) {
  World world;
  world.join(3, 3);
  world.run_two_stages(100);
  world.report_step(1);
  const auto before = world.broker.counters().protocol_errors;
  const ConnectionId liar = world.peers.front();
  proto::CheckpointReport report{.run = 1, .plan_version = world.version, .step = 2};
  report.tensors = {tensor("none of its own")};
  for (size_t s = 0; s < 2; ++s) {
    proto::StepReport step{.run = 1, .plan_version = world.version, .step = 2};
    step.squares = {4.0};
    if (s == 1) step.losses = {1.0, 3.0};
    step.updated = true;
    world.receive(world.peers[s], step);
  }
  world.receive(liar, report);
  EXPECT_EQ(world.broker.counters().protocol_errors, before + 1);
  EXPECT_EQ(std::count(world.closed.begin(), world.closed.end(), liar), 1);
  EXPECT_EQ(world.plannings.size(), 1u);  // with who is left
}

}  // namespace
}  // namespace weft::broker
