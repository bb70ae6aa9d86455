// Replicas that agree about large tensors part by part, from a job to assignments: what is owed of each part
// stays with who takes its mean, whoever that is after another plan.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "broker/place/stage_state.h"
#include "broker/run/planned_run.h"
#include "proto/agreed_weights.h"
#include "proto/codec/codec.h"
#include "tests/planning/planned_net.h"

namespace weft::broker {
namespace {

using dag::StateKey;
using dag::StateSlot;
using proto::AssignStage;
using test::PlannedRunPtr;

class PartsPlanned : public test::PlannedNet {
 protected:
  // Its longest tensor has 147,456 numbers.
  proto::SubmitJob submit(const std::vector<std::string>& sets,
                          uint32_t minor = proto::kProtocolMinorOfParts) {
    const std::filesystem::path there = jobs_.folder() / ("wide-" + std::to_string(++cases_));
    std::filesystem::create_directories(there);
    const std::filesystem::path job = test::unpack_case("resnet18w16", there);
    std::vector<std::string> all{"replicas=2", "sync.every=3", "microbatch_size=4"};
    all.insert(all.end(), sets.begin(), sets.end());
    proto::SubmitJob submission = jobs_.submit_file(job, all);
    submission.peer_minor = minor;
    return submission;
  }
};

const dag::Graph& graph_of(const AssignStage& stage) {
  return *test::program_of(stage, proto::ProgramKind::Train)->graph;
}

// Of each tensor in parts, by part: who takes the mean.
using Owners = std::map<StateKey, plan::Seat>;
Owners owners_of(const PlannedRun& run) {
  Owners owners;
  for (const PlannedStage& stage : run.stages)
    for (const KeptTensor& kept : kept_between_agreements(*stage.assignment, graph_of(*stage.assignment))) {
      if (kept.key.slot != StateSlot::ReturnResidue) continue;
      EXPECT_TRUE(owners.emplace(kept.key, stage.assignment->seat).second)
          << to_string(kept.key) << " is with two seats";
    }
  return owners;
}
size_t parts_in(const Owners& owners) {
  return static_cast<size_t>(
      std::count_if(owners.begin(), owners.end(), [](const auto& entry) { return entry.first.replica > 0; }));
}

// What its stages keep between agreements and all else that they train, each under a name of its own.
CheckpointCommitted snapshot_of(const PlannedRun& run, bool whole) {
  std::map<StateKey, dag::TensorSpec> specs;
  for (const PlannedStage& stage : run.stages) {
    const AssignStage& assign = *stage.assignment;
    const dag::Graph& graph = graph_of(assign);
    for (StateKey key : dag::trained_state(graph, assign.training.optimizer)) {
      const dag::TensorSpec& spec = graph.spec(graph.find_initializer(key.name)->value);
      if (!is_weight(key.slot)) key.replica = assign.seat.replica;
      specs[key] = spec;
      if (whole && key.slot == StateSlot::Value)
        specs[{key.owner, key.name, StateSlot::ReturnResidue}] = spec;
    }
    for (const KeptTensor& kept : kept_between_agreements(assign, graph))
      if (!whole || kept.key.slot != StateSlot::ReturnResidue) specs[kept.key] = kept.spec;
  }
  CheckpointCommitted point{.job = 1, .step = 6};
  point.local.emplace().steps = 6;
  point.local->skipped_steps = {0, 0};
  for (const auto& [key, spec] : specs) {
    proto::TensorReference& tensor = point.tensors.emplace_back();
    tensor = {key, spec, {}};
    tensor.sha256.bytes[0] = static_cast<uint8_t>(point.tensors.size());
    tensor.sha256.bytes[1] = static_cast<uint8_t>(point.tensors.size() >> 8);
  }
  return point;
}

TEST_F(PartsPlanned, WhatIsOwedOfAPartGoesToWhoTakesItsMean) {
  StartPlanning request = test::request_for(1, submit({"sync.codec=int4", "placement.stages=2"}), 4);
  const PlannedRunPtr first = plan(request);
  ASSERT_NE(first, nullptr);
  const Owners before = owners_of(*first);
  ASSERT_GE(parts_in(before), 4u);
  std::set<plan::Seat> owners;
  for (const auto& [key, seat] : before)
    if (key.replica > 0) owners.insert(seat);
  EXPECT_GE(owners.size(), 2u) << "one seat has all parts";
  for (const bool whole : {false, true}) {
    SCOPED_TRACE(whole ? "owed of whole tensors" : "of parts");
    request.checkpoint = snapshot_of(*first, whole);
    request.microbatch_size = first->training.microbatch_size;
    ++request.plan_version;
    for (const char* stages : {"placement.stages=1", "placement.stages=2"}) {
      request.submission = submit({"sync.codec=int4", stages});
      const PlannedRunPtr second = plan(request);
      ASSERT_NE(second, nullptr);
      std::map<StateKey, std::set<plan::Seat>> given;
      for (const PlannedStage& stage : second->stages) {
        const auto taken = proto::decode(proto::encode(*stage.assignment));
        ASSERT_TRUE(taken.has_value()) << taken.error().message;
        const StageState state(*stage.assignment);
        std::set<StateKey> there;
        for (const auto& tensor : stage.assignment->tensors) {
          there.insert(tensor.key);
          if (tensor.key.slot == StateSlot::ReturnResidue) given[tensor.key].insert(stage.assignment->seat);
        }
        for (const auto& tensor : request.checkpoint->tensors)
          EXPECT_EQ(state.has(tensor.key), there.contains(tensor.key)) << to_string(tensor.key);
      }
      const Owners after = owners_of(*second);
      EXPECT_EQ(after.size(), before.size());
      for (const auto& [key, seat] : after) {
        const StateKey sought = whole ? StateKey{key.owner, key.name, key.slot} : key;
        EXPECT_TRUE(given[sought].contains(seat)) << to_string(key);
        EXPECT_TRUE(whole || given[sought].size() == 1) << to_string(key) << " is given to others, too";
      }
    }
  }
}

TEST_F(PartsPlanned, OnlyWhereAllOfTheJobKnowThem) {
  const auto minor = [&](const std::vector<std::string>& sets) {
    const auto wanted = planner().check(submit(sets));
    EXPECT_TRUE(wanted.has_value()) << (wanted ? "" : wanted.error().message);
    return wanted ? wanted->peer_minor : 0;
  };
  EXPECT_EQ(minor({"sync.codec=int4"}), proto::kProtocolMinorOfParts);
  EXPECT_EQ(minor({"sync={every: {min: 3, max: 9}, codec: auto}"}), proto::kProtocolMinorOfParts);
  EXPECT_EQ(minor({"sync.codec=topk:0.02:int4"}), proto::kProtocolMinorOfLocalSteps);
  const auto parts = [&](proto::SubmitJob submission) {
    const PlannedRunPtr run = plan(test::request_for(1, std::move(submission), 4));
    return run == nullptr ? 0 : parts_in(owners_of(*run));
  };
  EXPECT_GT(parts(submit({"sync.codec=int4"})), 0u);
  EXPECT_EQ(parts(submit({"sync.codec=topk:0.02:int4"})), 0u);
  EXPECT_EQ(parts(submit({"sync.codec=int4"}, proto::kProtocolMinorOfLocalSteps)), 0u)
      << "it was submitted to an older broker, whose peers may have a part in it";
}

TEST_F(PartsPlanned, APeerTakesNoneThatAreNotAllOfTheirTensor) {
  const PlannedRunPtr run = plan(test::request_for(1, submit({"sync.codec=int4", "placement.stages=1"}), 2));
  ASSERT_NE(run, nullptr);
  const auto refusal = [&](const std::function<void(std::vector<proto::AgreedTensor>&, size_t)>& change,
                           const char* codec = "int4") {
    AssignStage stage = *run->stages.front().assignment;
    auto& tensors = stage.local->tensors;
    size_t part = 0;  // a second one
    while (tensors.at(part).elements == 0 || replicas::first_of(tensors[part].number) == 0) ++part;
    stage.local->steps.terms.codec = compress::parse(codec).value();
    change(tensors, part);
    const auto decoded = proto::decode(proto::encode(stage));
    return decoded ? std::string("taken") : decoded.error().message;
  };
  const auto expect_refused = [&](const char* why, const auto& change) {
    EXPECT_NE(refusal(change).find(why), std::string::npos) << refusal(change);
  };
  EXPECT_EQ(refusal([](auto&, size_t) {}), "taken");
  EXPECT_NE(refusal([](auto&, size_t) {}, "topk:0.02:int4").find("needs the whole"), std::string::npos);
  expect_refused("not there as a whole", [](auto& all, size_t at) {
    size_t last = at;
    while (last + 1 < all.size() && all[last + 1].name == all[at].name) ++last;
    all.erase(all.begin() + static_cast<ptrdiff_t>(last));
  });
  expect_refused("do not follow",
                 [](auto& all, size_t at) { all.erase(all.begin() + static_cast<ptrdiff_t>(at) - 1); });
  expect_refused("do not follow", [](auto& all, size_t at) { all[at - 1].elements = UINT64_MAX; });
  expect_refused("do not follow", [](auto& all, size_t at) { all[at].elements = 0; });
  expect_refused("ascend", [](auto& all, size_t at) { all[at].number = all[at - 1].number; });
  expect_refused("in several fragments", [](auto& all, size_t at) { all[at].fragment = 1; });
  expect_refused("not there as a whole", [](auto& all, size_t at) { all[at].number += 1; });
}

}  // namespace
}  // namespace weft::broker
