// The stages of a served model as they are placed: links, the pace of a ring, and others in their places.
#include <gtest/gtest.h>

#include "broker/place/assembly.h"
#include "broker/place/pace.h"
#include "broker/place/routes.h"
#include "broker/pool/candidates.h"
#include "tests/broker/serving_world.h"

namespace weft::broker {
namespace {

// Each neighbour of the ring once, also the last and the first; two of them share one link.
TEST(ServingPlaces, StagesThatAreNeighboursInTheRingAreLinked) {
  const std::vector<std::vector<std::set<uint32_t>>> neighbours = {
      {{}}, {{1}, {0}}, {{1, 2}, {0, 2}, {0, 1}}, {{1, 3}, {0, 2}, {1, 3}, {0, 2}}};
  for (const auto& expected : neighbours) {
    const auto count = static_cast<uint32_t>(expected.size());
    SCOPED_TRACE(std::to_string(count) + " stages");
    std::vector<StageAtPeer> stages(count);
    for (uint32_t s = 0; s < count; ++s) {
      stages[s].peer.peer = key(static_cast<uint8_t>(s + 1));
      stages[s].stage = std::make_shared<proto::AssignStage>();
      stages[s].stage->seat = {s};
      stages[s].stage->serve = proto::ServeProgram{};
    }
    PlannedRun run;
    set_links(stages, run, [n = uint8_t{0}]() mutable { return proto::Secret{++n}; });
    size_t dialled = 0;
    for (uint32_t s = 0; s < count; ++s) {
      std::set<uint32_t> linked;
      for (const proto::LinkRoute& link : stages[s].stage->links) {
        EXPECT_TRUE(linked.insert(link.seat.stage).second) << "twice";
        EXPECT_EQ(link.peer, stages[link.seat.stage].peer.peer);
        dialled += link.dials;
      }
      EXPECT_EQ(linked, expected[s]) << "of stage " << s;
    }
    EXPECT_EQ(dialled, run.relay_tickets.size()) << "one side dials";
  }
}

// Others take its stages as they are: the same parts, the tensors of the submission, links among the new
// ones.
TEST(ServingPlaces, PlacedAgainItsStagesStayAsTheyWere) {
  ServingWorld world;
  StartPlanning request{.job = 1, .plan_version = 1};
  for (uint8_t who = 1; who <= 3; ++who) request.candidates.push_back({key(who), "p", {}});
  const auto before = world.served_plan(request, "m");
  request.plan_version = 2;
  request.previous = before;
  request.placed = {2, 1};
  request.cluster = assumed_cluster(request.candidates);
  const auto placed = place_stages_again(request, nullptr, 0, [] { return proto::Secret{1}; });
  ASSERT_TRUE(placed.has_value()) << placed.error().message;
  const PlannedRun& after = **placed;
  EXPECT_EQ(after.served.name, "m");
  EXPECT_EQ(after.stages.at(0).peer, key(3));
  EXPECT_EQ(after.stages.at(1).peer, key(2));
  for (uint32_t s = 0; s < kStages; ++s) {
    const proto::AssignStage& stage = *after.stages[s].assignment;
    EXPECT_EQ(stage.plan_version, 2u);
    EXPECT_TRUE(stage.serve);
    ASSERT_EQ(stage.tensors.size(), 1u);
    EXPECT_EQ(stage.tensors[0].sha256, before->stages[s].assignment->tensors[0].sha256);
    ASSERT_EQ(stage.links.size(), 1u);
    EXPECT_EQ(stage.links[0].peer, after.stages[1 - s].peer);
  }
}

// Where links are slow, a step of the ring is what they take.
TEST(ServingPlaces, ThePaceOfARingIsItsHops) {
  ServingWorld world;
  StartPlanning request{.job = 1, .plan_version = 1};
  for (uint8_t who = 1; who <= 3; ++who)
    request.candidates.push_back({key(who), "p", {.region = who == 3 ? "far" : "near"}});
  const auto plan = world.served_plan(request, "m");
  const Pace pace(*plan, request.candidates, assumed_cluster(request.candidates));
  const std::vector<uint32_t> near = {0, 1}, far = {0, 2};
  EXPECT_LT(pace.step_seconds(near), pace.step_seconds(far));
}

}  // namespace
}  // namespace weft::broker
