#include "peer/machine/urgency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/rng.h"
#include "dag/op_table.h"
#include "plan/schedule.h"

namespace weft::peer {
namespace {

// A stage of three segments that sends a value of each: edge 10 + its segment.
proto::AssignStage sender() {
  dag::GraphBuilder b(dag::op_table());
  const dag::TensorSpec spec{dag::DType::F32, {2}};
  proto::StageProgram program;
  for (uint32_t segment = 0; segment < 3; ++segment) {
    const dag::ValueId x = b.input("x" + std::to_string(segment), spec);
    const dag::ValueId y = b.add(dag::OpKind::Relu, {x});
    b.output("y" + std::to_string(segment), y, dag::OutputRole::Prediction);
    program.sends.push_back({.edge = 10 + segment, .value = y, .stage = 1});
    program.segment_of_op.insert(program.segment_of_op.end(), 2, segment);
  }
  program.segment_count = 3;
  program.graph = std::make_shared<const dag::Graph>(b.finish());
  proto::AssignStage assignment;
  assignment.programs = {program};
  return assignment;
}
Urgency urgency(uint64_t step, uint32_t segment, uint32_t microbatch) {
  static const proto::AssignStage kSender = sender();
  return urgency_of({.step = step, .microbatch = microbatch, .edge = 10 + segment}, kSender);
}

TEST(Urgency, DeepestSegmentFirstThenMicrobatchesAscending) {
  EXPECT_LT(urgency(1, 2, 5), urgency(1, 1, 0));
  EXPECT_LT(urgency(1, 1, 5), urgency(1, 0, 0));
  EXPECT_LT(urgency(1, 1, 3), urgency(1, 1, 4));
}

TEST(Urgency, StepsAscendAndEvaluationsFollowTheirStep) {
  EXPECT_LT(urgency(1, 0, 9), urgency(2, 2, 0));
  Urgency evaluation = urgency_of({.step = 1, .program = proto::ProgramKind::Evaluate}, {});
  EXPECT_LT(urgency(1, 0, 9), evaluation);
  EXPECT_LT(evaluation, urgency(2, 2, 0));
}

TEST(Urgency, AComparisonRunsPassByPassBeforeItsStep) {
  const uint32_t first = proto::kComparisonMicrobatch;
  EXPECT_LT(urgency(3, 0, first), urgency(3, 2, first + 1));
  EXPECT_LT(urgency(3, 0, first + 2), urgency(3, 2, 0));
  EXPECT_LT(urgency(2, 0, 9), urgency(3, 2, first));
}

TEST(Urgency, AnEdgeThatIsNotThereIsNoReasonToFail) {
  EXPECT_EQ(urgency_of({.step = 1, .edge = 99}, sender()).height, 0u);
}

// Whatever a receiver has done, of all that waits the schedule would run what goes first here: were
// everything there, next_task chooses the segment and microbatch whose tensor is the least of those that can
// run.
TEST(Urgency, IsTheOrderOfTheSchedule) {
  constexpr uint32_t kMicrobatches = 6;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    std::array<uint32_t, 3> done{};
    done[0] = static_cast<uint32_t>(rng.below(kMicrobatches + 1));
    for (size_t s = 1; s < done.size(); ++s) done[s] = static_cast<uint32_t>(rng.below(done[s - 1] + 1));
    std::vector<std::pair<Urgency, plan::TaskChoice>> can_run;
    for (uint32_t segment = 0; segment < done.size(); ++segment)
      for (uint32_t m = 0; m < kMicrobatches; ++m)
        if (m >= done[segment] && (segment == 0 || m < done[segment - 1]))
          can_run.push_back({urgency(1, segment, m), {segment, m}});
    const auto choice = plan::next_task(
        done, [](uint32_t, uint32_t) { return true; }, kMicrobatches, kMicrobatches);
    ASSERT_EQ(choice.has_value(), !can_run.empty());
    if (!choice) continue;
    EXPECT_EQ(std::ranges::min_element(can_run, {}, &std::pair<Urgency, plan::TaskChoice>::first)->second,
              *choice);
  }
}

}  // namespace
}  // namespace weft::peer
