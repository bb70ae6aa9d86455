// Owners of parts of a tensor: what a model with a large embedding gains by them over home lines.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/plan/graphs.h"
#include "tests/plan/replicas_lawful.h"

namespace weft::plan {
namespace {

constexpr test::GptOptions kMostlyEmbedding{.layers = 4, .width = 256, .heads = 4, .tokens = 128};

ReplicasRequest homes(const dag::Graph& graph, uint32_t count, bool divides) {
  ReplicasRequest request{.count = count, .every = 30, .codec = compress::parse("int4").value()};
  request.pipeline.graph = &graph;
  request.pipeline.cluster = test::equal_devices(count, 2.5e6);
  request.pipeline.microbatches = 8;
  request.divides_tensors = divides;
  return request;
}

TEST(PartsOfTensors, AreSharedByOwnersAsEvenlyAsTheirLinesAllow) {
  const dag::Graph graph = test::gpt(kMostlyEmbedding);
  for (const uint32_t count : {2u, 8u, 24u}) {
    SCOPED_TRACE(count);
    const ReplicasRequest request = homes(graph, count, true);
    const ReplicasPlan plan = test::planned(request);
    test::expect_lawful(request, plan);
    std::vector<int64_t> taken(count, 0);
    int64_t all = 0;
    for (const AgreedWeight& weight : plan.agreed) {
      taken[weight.owner] += weight.bytes.value;
      all += weight.bytes.value;
    }
    EXPECT_LT(*std::max_element(taken.begin(), taken.end()), all / count + all / 128);
    const ReplicasPlan whole = test::planned(homes(graph, count, false));
    int64_t of_whole = 0;
    for (const AgreedWeight& weight : whole.agreed) {
      EXPECT_EQ(weight.elements, 0u);
      of_whole += weight.bytes.value;
    }
    EXPECT_EQ(all, of_whole) << "no byte more is sent";
    EXPECT_LT((count == 24 ? 3 : 1) * seconds(plan.agreement), 1.001 * seconds(whole.agreement))
        << "the embedding's line";
  }
}

// Each fragment travels by itself: a line that carried all of one would be waited for.
TEST(FragmentsOfAModel, AreEachSharedByAllOwners) {
  const dag::Graph graph = test::gpt({.layers = 6});
  ReplicasRequest request = homes(graph, 4, true);
  request.every = 10;
  request.settle_every = 12;
  request.fragments = 3;
  const ReplicasPlan plan = test::planned(request);
  EXPECT_EQ(plan.fragments, 3u);
  std::map<uint32_t, std::map<uint32_t, int64_t>> taken;  // by fragment and owner
  std::map<uint32_t, int64_t> of_fragment;
  int64_t largest = 0;
  for (const AgreedWeight& weight : plan.agreed) {
    taken[weight.fragment][weight.owner] += weight.bytes.value;
    of_fragment[weight.fragment] += weight.bytes.value;
    largest = std::max(largest, weight.bytes.value);
  }
  ASSERT_EQ(taken.size(), 3u);
  for (const auto& [fragment, by_owner] : taken)
    for (const auto& [owner, bytes] : by_owner) EXPECT_LE(bytes, of_fragment[fragment] / 4 + largest);
  request.fragments = 1;
  request.every = 30;
  request.settle_every = 4;
  const ReplicasPlan whole = test::planned(request);
  EXPECT_LT(seconds(plan.predicted_step), 1.05 * seconds(whole.predicted_step)) << "the same bytes a step";
  EXPECT_NE(plan.explanation.front().find("every 30 steps, in 3 fragments,"), std::string::npos)
      << plan.explanation.front();
}

TEST(PartsOfTensors, ThereAreNoneForACodecThatNeedsTheWhole) {
  const dag::Graph graph = test::gpt(kMostlyEmbedding);
  ReplicasRequest request = homes(graph, 4, true);
  request.codec = compress::parse("topk:0.02:int4").value();
  for (const AgreedWeight& weight : test::planned(request).agreed) EXPECT_EQ(weight.elements, 0u);
}

}  // namespace
}  // namespace weft::plan
