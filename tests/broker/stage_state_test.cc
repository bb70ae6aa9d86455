// Which tensors of a saved state a stage goes on with.
#include "broker/place/stage_state.h"

#include <gtest/gtest.h>

namespace weft::broker {
namespace {

using proto::AssignStage;

// Each has the same state, which is saved once.
TEST(StageState, OfReplicasThatAddGradientsIsTheSame) {
  StartPlanning request{};
  const dag::TensorSpec spec{dag::DType::F32, {3}};
  request.checkpoint = CheckpointCommitted{.job = 1, .step = 3};
  for (const dag::StateSlot slot : {dag::StateSlot::Value, dag::StateSlot::M, dag::StateSlot::V})
    request.checkpoint->tensors.push_back({dag::of_initializer("w", slot), spec, {}});
  for (const uint32_t replica : {0u, 1u}) {
    AssignStage stage;
    stage.seat = {0, replica};
    stage.training.optimizer.type = dag::OptimizerType::AdamW;
    stage.exact = proto::ExactTerms{{1, 1}, {}};
    stage.tensors = {request.checkpoint->tensors.front()};
    std::vector<proto::TensorReference> beside;
    StageState(stage).add_beside(SavedState(request), "w", beside);
    ASSERT_EQ(beside.size(), 2u);
    EXPECT_EQ(beside[0].key, dag::of_initializer("w", dag::StateSlot::M));
    EXPECT_EQ(beside[1].key, dag::of_initializer("w", dag::StateSlot::V));
    for (const proto::TensorReference& tensor : request.checkpoint->tensors)
      EXPECT_TRUE(StageState(stage).has(tensor.key)) << to_string(tensor.key);
  }
}

// With shared slots the weights are for each, and slots for their owner.
TEST(StageState, OfReplicasThatShareSlotsHasThoseOfWhatItOwns) {
  StartPlanning request{};
  const dag::TensorSpec spec{dag::DType::F32, {3}};
  request.checkpoint = CheckpointCommitted{.job = 1, .step = 3};
  for (const char* name : {"v", "w"})
    for (const dag::StateSlot slot : {dag::StateSlot::Value, dag::StateSlot::M, dag::StateSlot::V})
      request.checkpoint->tensors.push_back({dag::of_initializer(name, slot), spec, {}});
  for (const uint32_t replica : {0u, 1u}) {
    AssignStage stage;
    stage.seat = {0, replica};
    stage.training.optimizer.type = dag::OptimizerType::AdamW;
    stage.exact = proto::ExactTerms{{1, 1}, {{0, "v", 0, {0, 0}}, {1, "w", 1, {0, 0}}}, {}, true};
    stage.tensors = {request.checkpoint->tensors[0], request.checkpoint->tensors[3]};
    const std::string own = replica == 0 ? "v" : "w";
    std::vector<proto::TensorReference> beside;
    for (const char* name : {"v", "w"}) StageState(stage).add_beside(SavedState(request), name, beside);
    ASSERT_EQ(beside.size(), 2u);
    EXPECT_EQ(beside[0].key, dag::of_initializer(own, dag::StateSlot::M));
    EXPECT_EQ(beside[1].key, dag::of_initializer(own, dag::StateSlot::V));
    for (const proto::TensorReference& tensor : request.checkpoint->tensors)
      EXPECT_EQ(StageState(stage).has(tensor.key), is_weight(tensor.key.slot) || tensor.key.name == own)
          << to_string(tensor.key);
  }
}

}  // namespace
}  // namespace weft::broker
