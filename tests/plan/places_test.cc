#include "plan/places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "plan/replicas.h"
#include "tests/plan/graphs.h"
#include "tests/plan/lawful.h"

namespace weft::plan {
namespace {

using std::chrono::milliseconds;
using Order = std::vector<uint32_t>;
constexpr auto kNew = std::nullopt;

TEST(Places, WhoWasThereKeepsItsNumber) {
  const Groups alone{{0}, {1}, {2}};
  EXPECT_EQ(places_of(alone, {1, 0, 2}), (Order{1, 0, 2}));
  EXPECT_EQ(places_of(alone, {kNew, 1, 0}), (Order{2, 1, 0})) << "who came takes what is left";
  EXPECT_EQ(places_of({{0}, {1}}, {2, 1}), (Order{0, 1})) << "there are fewer";
  EXPECT_EQ(places_of({{0, 1}, {2, 3}}, {0, 0, kNew, 1}), (Order{0, 1})) << "a part of it has gone";
  EXPECT_EQ(places_of(alone, {}), (Order{0, 1, 2}));
}

TEST(Places, TheFirstReplicaIsOneThatHasItAll) {
  EXPECT_EQ(places_of({{0}, {1}, {2}}, {kNew, 1, 2}), (Order{1, 0, 2})) << "the first one was lost";
  EXPECT_EQ(places_of({{0}, {1}}, {kNew, 5}), (Order{1, 0}));
}

TEST(Places, EachGroupHasOne) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 1);
    Groups groups;
    ReplicasBefore before;
    for (uint32_t g = 0; g < 1 + rng.below(6); ++g) {
      groups.emplace_back();
      for (uint32_t size = 1 + static_cast<uint32_t>(rng.below(3)); size > 0; --size) {
        groups.back().push_back(static_cast<uint32_t>(before.size()));
        before.push_back(rng.below(3) == 0 ? std::nullopt
                                           : std::optional(static_cast<uint32_t>(rng.below(8))));
      }
    }
    Order order = places_of(groups, before);
    const bool is_any_there = std::any_of(groups.begin(), groups.end(),
                                          [&](const Group& group) { return are_there(group, before); });
    EXPECT_EQ(are_there(groups[order.front()], before), is_any_there);
    std::sort(order.begin(), order.end());
    Order all(groups.size());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(order, all);
  }
}

// Three replicas, of which one has just come over a line of so many bytes a second.
ReplicasRequest of_three(const dag::Graph& graph, double line) {
  ClusterView cluster({test::device("came", 50), test::device("b", 50), test::device("a", 50)});
  cluster.set_between(0, 0, {line, milliseconds(20), false});
  return {.pipeline = {.graph = &graph, .microbatches = 4, .optimizer_slots = 2, .cluster = cluster},
          .count = 3,
          .every = 30,
          .before = {kNew, 1, 0},
          .may_follow = true};
}

TEST(Followers, AreThoseThatNeedLongToBeGivenWhatTheOthersHave) {
  const dag::Graph graph = test::training_graph("gpt");
  ReplicasRequest request = of_three(graph, 2e4);
  auto plan = make_replicas_plan(request);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  EXPECT_EQ(plan->followers, Order{2});
  EXPECT_EQ(plan->replicas[2].stages.front().devices.front(), 0u);
  EXPECT_EQ(plan->replicas[0].stages.front().devices.front(), 2u);
  std::set<uint32_t> owners;
  for (const AgreedWeight& weight : plan->agreed) owners.insert(weight.owner);
  EXPECT_EQ(owners, (std::set<uint32_t>{0, 1})) << "who has nothing yet adds nothing up";
  const auto says = [&](const std::string& line) {
    return line.starts_with("replica 3: ") && line.ends_with(", once it has been given what the others have");
  };
  EXPECT_TRUE(std::any_of(plan->explanation.begin(), plan->explanation.end(), says));

  plan = make_replicas_plan(of_three(graph, 1e9));
  EXPECT_TRUE(plan->followers.empty()) << "it takes a moment";
  request.may_follow = false;
  EXPECT_TRUE(make_replicas_plan(request)->followers.empty());
  request.may_follow = true;
  request.before = {kNew, kNew, kNew};
  EXPECT_TRUE(make_replicas_plan(request)->followers.empty()) << "there is nobody to follow";
}

}  // namespace
}  // namespace weft::plan
