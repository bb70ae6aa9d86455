// Plans of jobs with one small net, by planners that each read one job: for the tests of replicas here.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "broker/service/planner.h"
#include "tests/planning/submitted.h"
#include "tests/train/reference_files.h"

namespace weft::test {

using PlannedRunPtr = std::shared_ptr<const broker::PlannedRun>;

// nullptr: the stage has none of that kind.
inline const proto::StageProgram* program_of(const proto::AssignStage& stage, proto::ProgramKind kind) {
  for (const proto::StageProgram& program : stage.programs)
    if (program.kind == kind) return &program;
  return nullptr;
}

class PlannedNet : public ::testing::Test {
 protected:
  // A net with running statistics, momentum and an evaluation.
  proto::SubmitJob submit_net(const std::vector<std::string>& sets = {}) {
    const std::filesystem::path there = jobs_.folder() / ("case-" + std::to_string(++cases_));
    std::filesystem::create_directories(there);
    const std::filesystem::path job = unpack_case("densenet", there);
    std::filesystem::rename(there / "model.onnx", there / "densenet.onnx");
    return jobs_.submit_file(job, sets);
  }
  // A planner is of one job.
  broker::JobPlanner planner() {
    return broker::JobPlanner(jobs_.folder() / ("planner-" + std::to_string(++planners_)), jobs_.blobs(),
                              uint64_t{1} << 20);
  }
  PlannedRunPtr plan(const broker::StartPlanning& request) {
    const auto run = planner().plan(request, /*is_first=*/true);
    EXPECT_TRUE(run.has_value()) << (run ? "" : run.error().message);
    return run ? *run : nullptr;
  }

  SubmittedJobs jobs_;
  int planners_ = 0, cases_ = 0;
};

}  // namespace weft::test
