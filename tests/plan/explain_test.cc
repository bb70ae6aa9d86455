// A plan in words: a summary that fits into a few lines, and behind it everything.
#include "plan/explain.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/plan/graphs.h"

namespace weft::plan {
namespace {

bool is_detail(const std::string& line) { return line.rfind("  ", 0) == 0; }

std::vector<std::string> explained(uint32_t stages) {
  const dag::Graph graph = test::training_graph("gpt");
  const auto plan = make_plan(
      {.graph = &graph, .microbatches = 4, .stages = stages, .cluster = test::equal_devices(stages, 1e10)});
  EXPECT_TRUE(plan.has_value()) << (plan ? "" : plan.error().message);
  return plan ? plan->explanation : std::vector<std::string>{};
}

TEST(Explanation, BeginsWithASummaryOfAFewLines) {
  for (const uint32_t stages : {1u, 2u, 3u, 4u, 8u}) {
    SCOPED_TRACE(stages);
    const auto lines = explained(stages);
    const auto details = std::find_if(lines.begin(), lines.end(), is_detail);
    EXPECT_TRUE(std::all_of(details, lines.end(), is_detail));
    const bool slower = lines.front().rfind("slower than ", 0) == 0;
    const bool ring = lines.back().find(" also has the last ops") != std::string::npos;
    EXPECT_EQ(lines.end() - details, 2 * stages + slower + ring)
        << "the critical path, each stage, each cut between two";
    EXPECT_EQ(details[slower].rfind("  critical path: ", 0), 0u) << details[slower];
    const auto count = static_cast<size_t>(details - lines.begin());
    ASSERT_GE(count, 3u);
    EXPECT_LE(count, kSummaryLines);
    EXPECT_NE((slower ? lines[count] : lines[count - 2]).find("bottleneck: "), std::string::npos);
    EXPECT_EQ(lines[count - 1].rfind("predicted step ", 0), 0u) << lines[count - 1];
    EXPECT_NE(lines[count - 1].find("alone"), std::string::npos) << lines[count - 1];
  }
}

TEST(Explanation, NamesFewStagesOneByOneAndManyTogether) {
  const auto two = explained(2);
  ASSERT_GE(two.size(), 2u);
  EXPECT_EQ(two[0].rfind("stage 1 of 2 on ", 0), 0u) << two[0];
  EXPECT_EQ(two[1].rfind("stage 2 of 2 on ", 0), 0u) << two[1];
  const auto eight = explained(8);
  ASSERT_GE(eight.size(), 2u);
  EXPECT_EQ(eight[0].rfind("8 stages on ", 0), 0u) << eight[0];
  EXPECT_NE(eight[0].find(" and 2 more: "), std::string::npos) << eight[0];
  EXPECT_NE(eight[1].find(" links carry "), std::string::npos) << eight[1];
}

}  // namespace
}  // namespace weft::plan
