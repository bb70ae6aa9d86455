// What a job goes back to where a copy stays with its replicas and some of them are gone: what a replica
// alone had stands for what others of it would have been, and nothing else is another.
#include "broker/jobs/recovery_points.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace weft::broker {
namespace {

using dag::StateKey;
using enum dag::StateSlot;

const dag::TensorSpec kSpec{dag::DType::F32, dag::Shape({4})};

Digest named(const StateKey& key) {
  Digest digest;
  const std::string text = to_string(key) + "/" + std::to_string(key.replica);
  for (size_t i = 0; i < text.size(); ++i)
    digest.bytes[i % 32] = static_cast<uint8_t>(digest.bytes[i % 32] * 31 + static_cast<uint8_t>(text[i]));
  return digest;
}

// Two weights, as Adam trains them, and what is kept beside them.
CheckpointCommitted round_of(uint32_t replicas) {
  CheckpointCommitted round{.job = 1, .step = 30, .tensors = {}, .skipped_steps = 10};
  round.local = proto::LocalPoint{.steps = 30 * replicas, .skipped_steps = {}, .inherited = {}};
  const auto add = [&](const char* name, dag::StateSlot slot, uint32_t replica) {
    StateKey key = dag::of_initializer(name, slot);
    key.replica = replica;
    round.tensors.push_back({key, kSpec, named(key)});
  };
  for (const char* name : {"a", "b"}) {
    for (const auto slot : {Value, OuterMomentum, ReturnResidue}) add(name, slot, 0);
    for (uint32_t replica = 0; replica < replicas; ++replica)
      for (const auto slot : {M, V, Residue}) add(name, slot, replica);
  }
  for (uint32_t replica = 0; replica < replicas; ++replica)
    round.local->skipped_steps.push_back(10 + replica);
  return round;
}

std::map<StateKey, Digest> tensors_of(const RecoveryPoints& points) {
  std::map<StateKey, Digest> tensors;
  for (const auto& tensor : points.newest()->tensors)
    EXPECT_TRUE(tensors.emplace(tensor.key, tensor.sha256).second) << to_string(tensor.key) << " twice";
  return tensors;
}

RecoveryPoints that_stay(uint32_t replicas) {
  RecoveryPoints points;
  points.commit_round(round_of(replicas), /*direct=*/true, /*stays=*/true);
  return points;
}

StateKey own(const char* name, dag::StateSlot slot, uint32_t replica) {
  StateKey key = dag::of_initializer(name, slot);
  key.replica = replica;
  return key;
}

TEST(RecoveryPoints, AReplicaThatIsGoneIsMadeOfTheFirstThatIsThere) {
  RecoveryPoints points = that_stay(4);
  ASSERT_TRUE(points.inherit({named(own("a", M, 0)), named(own("b", V, 2))}));
  const proto::LocalPoint& local = *points.newest()->local;
  EXPECT_EQ(local.inherited.sets, (std::vector<uint32_t>{1, 1, 1, 3}));
  EXPECT_FALSE(local.inherited.returns_are_lost);
  EXPECT_EQ(local.skipped_steps, (std::vector<uint64_t>{11, 11, 11, 13}));
  EXPECT_EQ(points.newest()->skipped_steps, 11u);
  EXPECT_EQ(points.newest()->made(), 120u);
  const auto tensors = tensors_of(points);
  for (const char* name : {"a", "b"})
    for (uint32_t replica = 0; replica < 4; ++replica) {
      const uint32_t from = replica == 3 ? 3 : 1;
      EXPECT_TRUE(tensors.at(own(name, M, replica)) == named(own(name, M, from)));
      EXPECT_TRUE(tensors.at(own(name, V, replica)) == named(own(name, V, from)));
      EXPECT_EQ(tensors.contains(own(name, Residue, replica)), replica == from);
    }
  EXPECT_EQ(local.inherited.debtless, (std::vector<uint32_t>{0, 2}));
  // And then the one that they were made of.
  ASSERT_TRUE(points.inherit({named(own("a", M, 1))}));
  EXPECT_EQ(points.newest()->local->inherited.sets, (std::vector<uint32_t>{3, 3, 3, 3}));
  EXPECT_TRUE(tensors_of(points).at(own("b", V, 0)) == named(own("b", V, 3)));
}

// Whoever took its place went on with what another one had; then that one goes, too.
TEST(RecoveryPoints, ASetThatSomebodyElseWentOnWithIsWithItStill) {
  RecoveryPoints points = that_stay(3);
  ASSERT_TRUE(points.inherit({named(own("a", M, 0)), named(own("b", M, 0))}));
  // The slots of the second have a holder still; what it owed has none.
  ASSERT_TRUE(points.inherit({named(own("a", Residue, 1)), named(own("b", Residue, 1))}));
  const replicas::Inherited& inherited = points.newest()->local->inherited;
  EXPECT_EQ(inherited.sets, (std::vector<uint32_t>{1, 1, 2}));
  EXPECT_EQ(inherited.debtless, (std::vector<uint32_t>{0, 1})) << "although one has its own slots";
  const auto tensors = tensors_of(points);
  EXPECT_TRUE(tensors.at(own("a", M, 1)) == named(own("a", M, 1)));
  EXPECT_FALSE(tensors.contains(own("a", Residue, 1)));
  EXPECT_TRUE(tensors.contains(own("a", Residue, 2)));
}

TEST(RecoveryPoints, WhatOwnersOweIsLostForAllOfThem) {
  RecoveryPoints points = that_stay(2);
  ASSERT_TRUE(points.inherit({named(own("a", ReturnResidue, 0))}));
  EXPECT_TRUE(points.newest()->local->inherited.returns_are_lost);
  EXPECT_EQ(points.newest()->local->inherited.sets, (std::vector<uint32_t>{0, 1}));
  for (const auto& [key, digest] : tensors_of(points)) EXPECT_NE(key.slot, ReturnResidue);
}

TEST(RecoveryPoints, WhatAllAgreedOnIsNotMadeOfAnything) {
  for (const dag::StateSlot slot : {Value, OuterMomentum}) {
    RecoveryPoints points = that_stay(3);
    const auto before = tensors_of(points);
    EXPECT_FALSE(points.inherit({named(own("a", slot, 0)), named(own("a", M, 1))}));
    EXPECT_EQ(tensors_of(points), before);
    EXPECT_TRUE(points.newest()->local->inherited.is_whole());
  }
  RecoveryPoints points = that_stay(2);
  EXPECT_FALSE(points.inherit({named(own("a", M, 0)), named(own("a", M, 1))})) << "nobody is left";
  RecoveryPoints others;
  others.commit_round(round_of(2), /*direct=*/true);
  EXPECT_FALSE(others.inherit({named(own("a", M, 0))})) << "others were to fetch it";
}

}  // namespace
}  // namespace weft::broker
