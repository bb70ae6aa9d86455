// What an operator is given and asked for may be anything: each input, output and attribute of its own case
// dropped, emptied, doubled or changed. Nothing of that may end the process.
#include <gtest/gtest.h>

#include <set>

#include "tests/onnx/models.h"
#include "tests/onnx/operator_cases.h"

namespace weft::onnx::testing {
namespace {

TEST(NodeMutations, EveryOperatorHasACase) {
  std::set<std::string> have;
  for (const auto& each : operator_cases()) have.insert(each.op);
  for (const auto& op : imported_operators("")) EXPECT_TRUE(have.contains(op)) << op;
  for (const auto& op : imported_operators("com.microsoft"))
    EXPECT_TRUE(have.contains("com.microsoft." + op)) << op;
}

TEST(NodeMutations, EveryCaseIsImportedAsItStands) {
  for (const auto& each : operator_cases()) {
    const auto imported = import_bytes(each.model.SerializeAsString());
    EXPECT_TRUE(imported.has_value()) << each.name << ": " << imported.error().message;
  }
}

// One change at a time, all there are.
class NodeMutations : public ::testing::TestWithParam<int> {};

TEST_P(NodeMutations, NoneEndsTheProcess) {
  const auto mutation = static_cast<Mutation>(GetParam());
  int tried = 0;
  for (const auto& each : operator_cases()) {
    SCOPED_TRACE(each.name);
    for (int node = 0; node < count_nodes(each.model); ++node)
      for (int place = 0; place < 24; ++place)
        for (int form = 0; form < 16; ++form) {
          pb::ModelProto model = each.model;
          if (!mutate(model, node, mutation, place, form)) continue;

          use_model(model);
          ++tried;
        }
  }
  EXPECT_GT(tried, 100);
}

INSTANTIATE_TEST_SUITE_P(All, NodeMutations, ::testing::Range(0, kMutationCount), [](const auto& each) {
  std::string name(to_string(static_cast<Mutation>(each.param)));
  for (char& c : name)
    if (c == ' ') c = '_';
  return name;
});

}  // namespace
}  // namespace weft::onnx::testing
