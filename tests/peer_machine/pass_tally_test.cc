// What evaluations and comparisons come to, by themselves.
#include "peer/machine/pass_tally.h"

#include <gtest/gtest.h>

#include <vector>

namespace weft::peer {
namespace {

using proto::Command;
using proto::CommandKind;

proto::AssignStage of_run_seven() {
  proto::AssignStage assignment;
  assignment.run = 7;
  assignment.plan_version = 2;
  return assignment;
}

TEST(PassTally, AnEvaluationHasItsNumbersInOrderAndTheNextOneBeginsAnew) {
  PassTally tally(of_run_seven());
  tally.add_forward({.loss = {1}, .correct = {3}, .counted = {4}});
  EXPECT_EQ(tally.end_microbatch(), 1u);
  tally.add_forward({.loss = {2}, .correct = {1}, .counted = {4}});
  EXPECT_EQ(tally.end_microbatch(), 2u);
  const auto report = tally.finish_forward({.kind = CommandKind::Evaluate, .step = 5, .first_microbatch = 8});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->run, 7u);
  EXPECT_EQ(report->plan_version, 2u);
  EXPECT_EQ(report->step, 5u);
  EXPECT_EQ(report->first_microbatch, 8u);
  EXPECT_EQ(report->loss, (std::vector<double>{1, 2}));
  EXPECT_EQ(report->correct, (std::vector<double>{3, 1}));
  EXPECT_EQ(report->counted, (std::vector<double>{4, 4}));
  EXPECT_EQ(tally.end_microbatch(), 1u);
  EXPECT_FALSE(tally.finish_forward({.kind = CommandKind::Evaluate, .step = 6}));
}

TEST(PassTally, APredictionIsNotReportedAsAWhole) {
  PassTally tally(of_run_seven());
  EXPECT_EQ(tally.end_microbatch(), 1u);
  EXPECT_FALSE(tally.finish_forward({.kind = CommandKind::Predict}));
  EXPECT_EQ(tally.end_microbatch(), 1u);
}

TEST(PassTally, AComparisonHasANumberForEachPass) {
  PassTally tally(of_run_seven());
  for (int time = 0; time < 2; ++time) {
    for (uint32_t pass = 0; pass < proto::kComparisonPasses; ++pass) {
      tally.add_comparison({.loss = {1.0 + pass}});
      EXPECT_EQ(tally.end_pass({.squares = {10.0 * pass, 5}}), pass + 1 == proto::kComparisonPasses);
    }
    const auto report = tally.finish_comparison({.kind = CommandKind::Compare, .step = 9});
    EXPECT_EQ(report.run, 7u);
    EXPECT_EQ(report.step, 9u);
    ASSERT_EQ(report.losses.size(), proto::kComparisonPasses);
    ASSERT_EQ(report.squares.size(), proto::kComparisonPasses);
    for (uint32_t pass = 0; pass < proto::kComparisonPasses; ++pass) {
      EXPECT_EQ(report.losses[pass], 1.0 + pass);
      EXPECT_EQ(report.squares[pass], 10.0 * pass + 5);
    }
  }
}

}  // namespace
}  // namespace weft::peer
