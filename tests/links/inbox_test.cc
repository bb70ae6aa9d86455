#include "peer/service/inbox.h"

#include <gtest/gtest.h>

#include "dag/op_table.h"

namespace weft::peer {
namespace {

// Edge 9 comes for the first segment, edge 4 for the second.
std::shared_ptr<const proto::AssignStage> two_segments() {
  dag::GraphBuilder builder(dag::op_table());
  const dag::ValueId first = builder.input("edge.9", {dag::DType::F32, {2}});
  const dag::ValueId second = builder.input("edge.4", {dag::DType::F32, {2}});
  proto::StageProgram program;
  program.receives = {{.edge = 4, .value = second}, {.edge = 9, .value = first}};
  program.segment_of_op = {0, 1};
  program.segment_count = 2;
  program.graph = std::make_shared<const dag::Graph>(builder.finish());
  const auto assignment = std::make_shared<proto::AssignStage>();
  assignment->programs = {program};
  return assignment;
}

Task segment_of(uint32_t microbatch, uint32_t segment) {
  return {.key = {proto::ProgramKind::Train, 1, microbatch}, .segment = segment};
}
proto::TensorHeader header_of(uint32_t microbatch, uint32_t edge) {
  return {.step = 1, .microbatch = microbatch, .edge = edge};
}

TEST(Inbox, HandsEachTensorOnceToTheSegmentThatReadsIt) {
  Inbox inbox(two_segments());
  const dag::Tensor four = dag::make_tensor({2}, std::vector<float>{4, 4});
  const dag::Tensor nine = dag::make_tensor({2}, std::vector<float>{9, 9});
  inbox.keep(header_of(0, 4), four);
  inbox.keep(header_of(0, 9), nine);
  inbox.keep(header_of(1, 9), nine);

  const auto first = inbox.take(segment_of(0, 0));
  ASSERT_EQ(first.received.size(), 1u);
  EXPECT_EQ(first.received[0].first, 1u);
  EXPECT_EQ(first.received[0].second.bytes().data(), nine.bytes().data()) << "it was copied";
  EXPECT_TRUE(inbox.take(segment_of(0, 0)).received.empty());

  const auto second = inbox.take(segment_of(0, 1));
  ASSERT_EQ(second.received.size(), 1u);
  EXPECT_EQ(second.received[0].first, 0u);
  EXPECT_EQ(inbox.take(segment_of(1, 0)).received.size(), 1u);
  EXPECT_TRUE(inbox.take(segment_of(1, 1)).received.empty());
}

TEST(Inbox, HandsAPassOnWithAllItsEdges) {
  Inbox inbox(std::make_shared<const proto::AssignStage>());
  const dag::Tensor rows = dag::make_tensor({2}, std::vector<float>{4, 4});
  for (const auto& [pass, edge] : {std::pair{5u, 1u}, {6u, 0u}, {5u, 0u}}) {
    proto::TensorHeader header{.step = pass, .microbatch = 2, .edge = edge};
    header.program = proto::ProgramKind::Serve;
    inbox.keep(header, rows);
  }
  const Task five{.kind = TaskKind::Pass, .key = {proto::ProgramKind::Serve, 5, 0}};
  const auto taken = inbox.take(five);
  ASSERT_EQ(taken.received.size(), 2u);
  EXPECT_EQ(taken.received[0].first, 1u);
  EXPECT_EQ(taken.received[1].first, 0u);
  EXPECT_TRUE(inbox.take(five).received.empty());
  EXPECT_TRUE(
      inbox.take({.kind = TaskKind::Begin, .key = {proto::ProgramKind::Serve, 6, 0}}).received.empty());
}

TEST(Inbox, KeepsDataUntilItsMicrobatchIsFinishedWith) {
  Inbox inbox(two_segments());
  const MicrobatchKey key = segment_of(3, 0).key;
  BulkTransfers::MicrobatchData data;
  data.sample_position = 24;
  data.tensors["x"] = dag::make_tensor({1}, std::vector<float>{1});
  inbox.keep(key, std::move(data));
  for (const uint32_t segment : {0u, 1u}) {
    const auto inputs = inbox.take(segment_of(3, segment));
    EXPECT_EQ(inputs.data.size(), 1u);
    EXPECT_EQ(inputs.sample_position, 24);
  }
  EXPECT_TRUE(inbox.take({.kind = TaskKind::Update, .key = key}).data.empty());
  inbox.drop(key);
  EXPECT_TRUE(inbox.take(segment_of(3, 1)).data.empty());
}

}  // namespace
}  // namespace weft::peer
