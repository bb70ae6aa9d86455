// Values that no file has are made where they are needed, and count where their hash is the one that was
// said.
#include "peer/service/made_blobs.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "storage/sha256.h"

namespace weft::peer {
namespace {

constexpr dag::MadeValue kDrawn{.seed = 7, .bound = 0.25};

proto::AssignStage assigned(proto::JobNumber run, const dag::TensorSpec& spec, const dag::MadeValue& how) {
  proto::AssignStage assignment;
  assignment.run = run;
  for (const char* name : {"w", "w.lora_A"}) {
    const dag::Tensor value = dag::make_value(how, spec, name);
    assignment.tensors.push_back(
        {dag::of_initializer(name), spec, *digest_from_hex(storage::sha256_hex(value.bytes()))});
  }
  assignment.made.push_back({1, how});
  return assignment;
}

TEST(MadeBlobs, AreTheBytesThatTheirHashSays) {
  const dag::TensorSpec spec{dag::DType::F32, {4, 64}};
  const auto assignment = assigned(1, spec, kDrawn);
  MadeBlobs blobs;
  EXPECT_FALSE(blobs.make(assignment.tensors[1].sha256)) << "nobody said how";
  blobs.learn(assignment);
  const auto made = blobs.make(assignment.tensors[1].sha256);
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ(digest_from_hex(storage::sha256_hex(made->bytes)), assignment.tensors[1].sha256);
  EXPECT_FALSE(blobs.make(assignment.tensors[0].sha256)) << "a file has it";
}

TEST(MadeBlobs, WhatHasAnotherHashIsFetched) {
  auto assignment = assigned(1, {dag::DType::F32, {4, 64}}, kDrawn);
  assignment.made[0].how.seed = 8;
  MadeBlobs blobs;
  blobs.learn(assignment);
  EXPECT_FALSE(blobs.make(assignment.tensors[1].sha256));
}

TEST(MadeBlobs, NothingLargeIsMadeWhileOthersWait) {
  MadeBlobs blobs;
  const auto large = assigned(1, {dag::DType::F32, {5, 1 << 20}}, {});
  blobs.learn(large);
  EXPECT_FALSE(blobs.make(large.tensors[1].sha256));
}

TEST(MadeBlobs, ALaterAssignmentOfTheRunStandsForTheEarlier) {
  const dag::TensorSpec spec{dag::DType::F32, {2, 2}};
  auto first = assigned(1, spec, kDrawn);
  const auto other = assigned(2, spec, {.seed = 9, .deviation = 2});
  MadeBlobs blobs;
  blobs.learn(first);
  blobs.learn(other);
  const Digest sha256 = first.tensors[1].sha256;
  EXPECT_TRUE(blobs.make(sha256).has_value());
  first.made.clear();
  blobs.learn(first);
  EXPECT_FALSE(blobs.make(sha256).has_value());
  EXPECT_TRUE(blobs.make(other.tensors[1].sha256).has_value());
}

TEST(MadeValue, IsDrawnByNameSeedAndElement) {
  const dag::TensorSpec spec{dag::DType::F32, {100, 10}};
  const auto numbers = [&](const dag::MadeValue& how, const char* name) {
    return to_doubles(dag::make_value(how, spec, name));
  };
  const auto drawn = numbers(kDrawn, "a");
  EXPECT_EQ(drawn, numbers(kDrawn, "a"));
  EXPECT_NE(drawn, numbers(kDrawn, "b"));
  EXPECT_NE(drawn, numbers({.seed = 8, .bound = 0.25}, "a"));
  const auto [low, high] = std::minmax_element(drawn.begin(), drawn.end());
  EXPECT_TRUE(*low >= -0.25 && *low < -0.24 && *high <= 0.25 && *high > 0.24);
  double squares = 0;
  for (const double number : numbers({.seed = 1, .deviation = 2}, "a")) squares += number * number;
  EXPECT_NEAR(squares / 1000, 4, 0.5);
  EXPECT_EQ(numbers({}, "a"), std::vector<double>(1000, 0.0));
}

}  // namespace
}  // namespace weft::peer
