// Replicas that share the optimizer's slots, from a job to assignments: each slot is with one seat, in its
// snapshots and after them, whoever owns what then.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "broker/run/claims.h"
#include "broker/service/plan_worker.h"
#include "dag/slots.h"
#include "proto/codec/codec.h"
#include "tests/planning/planned_net.h"

namespace weft::broker {
namespace {

using dag::StateKey;
using proto::AssignStage;
using test::PlannedRunPtr;

class SharedSlotsPlanned : public test::PlannedNet {
 protected:
  proto::SubmitJob submit(std::vector<std::string> sets) {
    sets.push_back("optimizer_state=shared");
    return submit_net(sets);
  }
};

const dag::Graph& trained(const AssignStage& stage) {
  return *test::program_of(stage, proto::ProgramKind::Train)->graph;
}

// What its stages' snapshots hold, each under a name of its own.
CheckpointCommitted snapshot_of(const PlannedRun& run, uint64_t step) {
  CheckpointCommitted point{.job = 1, .step = step};
  for (const PlannedStage& planned : run.stages) {
    const AssignStage& stage = *planned.assignment;
    proto::CheckpointReport report{.run = 1, .plan_version = stage.plan_version, .step = step};
    const dag::Graph& graph = trained(stage);
    for (const StateKey& key : copied_state(stage)) {
      proto::TensorReference& tensor = report.tensors.emplace_back();
      tensor = {key,
                spec_of_state(key.slot, graph.spec(graph.find_initializer(key.name)->value),
                              stage.training.optimizer.slots),
                {}};
      tensor.sha256.bytes[0] = static_cast<uint8_t>(point.tensors.size() + report.tensors.size());
      tensor.sha256.bytes[1] = static_cast<uint8_t>((point.tensors.size() + report.tensors.size()) >> 8);
    }
    EXPECT_EQ(report.tensors.empty(), !keeps_state(stage)) << to_string(stage.seat);
    EXPECT_TRUE(StageClaims(stage).check(report).has_value());
    point.tensors.insert(point.tensors.end(), report.tensors.begin(), report.tensors.end());
    if (report.tensors.empty()) continue;
    report.tensors.pop_back();
    EXPECT_FALSE(StageClaims(stage).check(report).has_value());
  }
  return point;
}

// Each seat has the weights of its stage, and each slot is with the seat of its parameter's owner.
void expect_each_slot_once(const PlannedRun& run, const CheckpointCommitted* point) {
  EXPECT_TRUE(run.shares_slots());
  std::map<StateKey, Digest> saved;
  const CheckpointCommitted none{.job = 1, .step = 0, .tensors = {}};
  for (const auto& tensor : (point != nullptr ? point : &none)->tensors)
    EXPECT_TRUE(saved.emplace(tensor.key, tensor.sha256).second) << to_string(tensor.key) << " twice";
  std::set<uint32_t> parameters;
  std::set<StateKey> slots;
  for (const PlannedStage& planned : run.stages) {
    const AssignStage& stage = *planned.assignment;
    const auto taken = proto::decode(proto::encode(stage));
    ASSERT_TRUE(taken.has_value()) << taken.error().message;
    EXPECT_EQ(planned.parameters.size(), updated_parameters(stage).size());
    for (const uint32_t parameter : planned.parameters)
      EXPECT_TRUE(parameters.insert(parameter).second) << "two seats update parameter " << parameter;
    for (const auto& tensor : stage.tensors) {
      EXPECT_EQ(tensor.sha256, saved.try_emplace(tensor.key, tensor.sha256).first->second);
      EXPECT_TRUE(is_weight(tensor.key.slot) || slots.insert(tensor.key).second)
          << to_string(tensor.key) << " is with two seats";
    }
  }
  EXPECT_EQ(parameters.size(), run.parameter_count);
  size_t saved_slots = 0;
  for (const auto& [key, digest] : saved) saved_slots += !is_weight(key.slot);  // none is new
  EXPECT_EQ(slots.size(), saved_slots);
}

TEST_F(SharedSlotsPlanned, EachSlotIsWithOneSeatAlsoAfterAnotherPlan) {
  StartPlanning request =
      test::request_for(1, submit({"replicas={min: 2, max: 2}", "placement.stages=2"}), 8);
  const PlannedRunPtr two = plan(request);
  ASSERT_NE(two, nullptr);
  ASSERT_EQ(two->exact_ranges.size(), 2u);
  expect_each_slot_once(*two, nullptr);
  request.checkpoint = snapshot_of(*two, 3);
  size_t slots = 0;
  for (const auto& tensor : request.checkpoint->tensors) slots += !is_weight(tensor.key.slot);
  EXPECT_EQ(slots, two->parameter_count) << "a momentum each";
  request.microbatch_size = two->training.microbatch_size;
  ++request.plan_version;
  request.submission = submit({"replicas={min: 2, max: 2}", "placement.stages=1"});
  const PlannedRunPtr others = plan(request);
  ASSERT_NE(others, nullptr);
  ASSERT_EQ(others->stages.size(), 2u);
  expect_each_slot_once(*others, &*request.checkpoint);
  // One that goes on alone has all of them.
  StartPlanning of_one_peer =
      test::request_for(1, submit({"replicas={min: 1, max: 2}", "placement.stages=1"}), 1);
  of_one_peer.plan_version = 3;
  of_one_peer.checkpoint = request.checkpoint;
  of_one_peer.microbatch_size = request.microbatch_size;
  const PlannedRunPtr alone = plan(of_one_peer);
  ASSERT_NE(alone, nullptr);
  EXPECT_FALSE(alone->shares_slots());
  size_t of_one = 0;
  for (const auto& tensor : alone->stages[0].assignment->tensors) of_one += !is_weight(tensor.key.slot);
  EXPECT_EQ(of_one, slots);
}

TEST_F(SharedSlotsPlanned, OnlyPeersThatKnowItSuit) {
  const auto shared = planner().check(submit({"replicas=2"}));
  ASSERT_TRUE(shared.has_value()) << shared.error().message;
  EXPECT_EQ(shared->peer_minor, proto::kProtocolMinorOfSharedSlots);
  const auto one = planner().check(submit({"replicas=1"}));
  ASSERT_TRUE(one.has_value()) << one.error().message;
  EXPECT_LT(one->peer_minor, proto::kProtocolMinorOfExactReplicas);
  const auto none = planner().check(submit({"replicas=2", "optimizer={type: sgd, learning_rate: 0.1}"}));
  ASSERT_TRUE(none.has_value()) << none.error().message;
  EXPECT_EQ(none->peer_minor, proto::kProtocolMinorOfExactReplicas) << "no slots are no matter";
}

}  // namespace
}  // namespace weft::broker
