// Peers whose software is older than ops of a job's graph get no part of it, and the plan says so.
#include <gtest/gtest.h>

#include <algorithm>

#include "broker/service/planner.h"
#include "dag/op_set.h"
#include "tests/planning/submitted.h"

namespace weft::broker {
namespace {

class PlannedForOlderPeers : public ::testing::Test {
 protected:
  // Its base is kept in fewer bits: products with it are ops of the second set.
  PlannedForOlderPeers()
      : submission_(jobs_.submit("llama_lora", {"placement.stages=2", "base={store: int4, block: 32}"})) {}

  // Four peers, of which these know the first set alone.
  auto plan(const std::vector<size_t>& older) {
    StartPlanning request = test::request_for(1, submission_);
    for (const size_t i : older) request.candidates[i].device.op_set = dag::kFirstOpSet;
    JobPlanner planner(jobs_.folder() / ("planner-" + std::to_string(++planners_)), jobs_.blobs(), {});
    return planner.plan(request, /*is_first=*/false);
  }
  static std::vector<std::string> said(const PlannedRun& run) {
    std::vector<std::string> lines;
    for (const std::string& line : run.explanation)
      if (line.find("too old") != std::string::npos) lines.push_back(line);
    return lines;
  }

  test::SubmittedJobs jobs_;
  proto::SubmitJob submission_;
  int planners_ = 0;
};

TEST_F(PlannedForOlderPeers, TheyGetNoPart) {
  const auto all = plan({});
  ASSERT_TRUE(all.has_value()) << all.error().message;
  EXPECT_EQ((*all)->op_set, 2u);
  EXPECT_TRUE(said(**all).empty());
  // The fastest are among them, and both of one class of devices.
  const std::vector<size_t> older{1, 3};
  const auto run = plan(older);
  ASSERT_TRUE(run.has_value()) << run.error().message;
  const std::vector<Candidate> peers = test::candidates(4);
  for (const auto& stage : (*run)->stages) {
    for (const size_t i : older) EXPECT_NE(stage.peer, peers[i].peer);
    const auto at = std::find_if(peers.begin(), peers.end(),
                                 [&](const Candidate& peer) { return peer.peer == stage.peer; });
    ASSERT_NE(at, peers.end());
    EXPECT_EQ(stage.assignment->device_class, at->device.device_class()) << "made for its own device";
  }
  ASSERT_EQ(said(**run).size(), 1u);
  EXPECT_NE(said(**run)[0].find("peer-1, peer-3"), std::string::npos) << said(**run)[0];
}

TEST_F(PlannedForOlderPeers, WithNobodyElseTheJobWaits) {
  const auto none = plan({0, 1, 2, 3});
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::Infeasible);
  EXPECT_NE(none.error().message.find("Stored"), std::string::npos) << none.error().message;
}

}  // namespace
}  // namespace weft::broker
