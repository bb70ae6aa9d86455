// Which program knows which ops: whoever adds one cannot forget to say so.
#include "dag/op_set.h"

#include <gtest/gtest.h>

#include <map>

#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::dag {
namespace {

TEST(OpSet, GrowsWithEachOpThatIsAdded) {
  std::map<uint32_t, int> counts;
  for (int kind = 0; kind < kOpKindCount; ++kind) ++counts[op_set_of(static_cast<OpKind>(kind))];
  // Peers out there have a set as it stands here: what is added is of the next one, a line in dag/op_set.cc
  // and one here, and kOpSet grows.
  EXPECT_EQ(counts, (std::map<uint32_t, int>{{1, 128}, {2, 2}, {3, 2}}));
  EXPECT_EQ(counts.rbegin()->first, kOpSet);
}

TEST(OpSet, OfAGraphIsThatOfItsNewestOp) {
  const auto graph_of = [](OpKind kind) {
    GraphBuilder builder(op_table());
    const ValueId x = builder.input("x", {DType::F32, {1, 1, 4, 8}});
    std::vector<ValueId> inputs{x, x};
    Attributes attributes{{Attr::TransB, int64_t{1}}};
    if (kind == OpKind::Attention) {
      inputs.push_back(x);
      attributes.set(Attr::Alpha, 0.5);
    }
    const ValueId y = builder.add(kind, inputs, attributes);
    builder.output("y", builder.add(OpKind::Neg, {y}), OutputRole::Prediction);
    return builder.finish();
  };
  EXPECT_EQ(op_set_of(graph_of(OpKind::MatMul)), kFirstOpSet);
  EXPECT_EQ(op_set_of(graph_of(OpKind::Attention)), op_set_of(OpKind::Attention));
  EXPECT_EQ(newest_op(graph_of(OpKind::Attention)), OpKind::Attention);
}

}  // namespace
}  // namespace weft::dag
