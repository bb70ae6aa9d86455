// Codecs of a plan's links, by each policy.
#include "plan/compression.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "plan/noise.h"
#include "plan/plan.h"
#include "tests/plan/graphs.h"
#include "tests/support/models.h"

namespace weft::plan {
namespace {

using std::chrono::milliseconds;

Plan planned(const PlanRequest& request) {
  auto plan = make_plan(request);
  EXPECT_TRUE(plan.has_value()) << (plan ? "" : plan.error().message);
  return plan.value_or(Plan{});
}

TEST(TopKOf, TakesAtMostWhatTheRatioLeaves) {
  for (const size_t count : {300u, 4096u, 100'003u, 1u << 20})
    for (const auto values :
         {compress::Values::F32, compress::Values::F16, compress::Values::I8, compress::Values::I4})
      for (const double ratio : {1.0, 2.0, 10.0, 99.5, 1000.0}) {
        const compress::Codec codec = top_k_of(ratio, values, count);
        ASSERT_TRUE(compress::check(codec).has_value());
        const double most = static_cast<double>(4 * count) / ratio;
        if (codec.per_million > 1) {
          EXPECT_LE(static_cast<double>(compress::wire_bytes(codec, count)), most) << compress::name(codec);
        }
        if (codec.per_million < 1'000'000) {  // a little denser is too much
          compress::Codec denser = codec;
          denser.per_million = std::min<uint32_t>(
              1'000'000, codec.per_million + 1 + static_cast<uint32_t>(2e6 / static_cast<double>(count)));
          EXPECT_GT(static_cast<double>(compress::wire_bytes(denser, count)), most) << compress::name(codec);
        }
      }
}

class Compressed : public testing::Test {
 protected:
  const dag::Graph graph_ =
      test::gpt({.layers = 4, .width = 128, .heads = 4, .vocabulary = 512, .tokens = 64, .tied = false});
  PlanRequest request(ClusterView cluster, Compression compression = {}) const {
    return {.graph = &graph_,
            .microbatches = 8,
            .stages = static_cast<uint32_t>(cluster.devices().size()),
            .cluster = std::move(cluster),
            .compression = std::move(compression)};
  }
};

TEST_F(Compressed, UniformMakesEveryLinkSmallerByItsCodec) {
  const ClusterView cluster = test::equal_devices(3, 1e6, milliseconds(10));
  const auto int8 = *compress::parse("int8");
  const Plan dense = planned(request(cluster)),
             compressed = planned(request(cluster, {.policy = CompressionPolicy::Uniform, .codec = int8}));
  EXPECT_TRUE(dense.codecs.empty());
  EXPECT_EQ(compressed.codecs.size(), 4u);  // two borders, both ways
  for (const LinkCodec& link : compressed.codecs) EXPECT_EQ(link.codec, int8);
  for (const PlannedLink& link : compressed.links)
    EXPECT_NEAR(static_cast<double>(link.dense.value) / static_cast<double>(link.bytes.value), 3.94, 0.1);
  for (const PlannedLink& link : dense.links) EXPECT_EQ(link.bytes, link.dense);
  EXPECT_LT(2 * seconds(compressed.predicted_step), seconds(dense.predicted_step));
  EXPECT_TRUE(std::any_of(
      compressed.explanation.begin(), compressed.explanation.end(),
      [](const std::string& line) { return line.find("compressed as int8") != std::string::npos; }));
}

// FusionLLM: a link's ratio grows with its transfer time, that of the slowest is what was asked for.
TEST_F(Compressed, AdaTopKCompressesTheSlowestLinkMostAndFastOnesNotAtAll) {
  ClusterView cluster = test::equal_devices(3, 1e9, milliseconds(1));
  for (const uint32_t other : {0u, 1u}) {
    cluster.set_link(2, other, {1e6, milliseconds(20)});
    cluster.set_link(other, 2, {1e6, milliseconds(20)});
  }
  const Plan plan = planned(request(cluster, {.policy = CompressionPolicy::AdaTopK, .ratio = 50}));
  ASSERT_EQ(plan.stages.size(), 3u);
  EXPECT_EQ(plan.codecs.size(), 2u);  // there and back over the slow one
  for (const LinkCodec& link : plan.codecs) {
    const std::set<uint32_t> pair{plan.stages[link.from_stage].devices.front(),
                                  plan.stages[link.to_stage].devices.front()};
    EXPECT_TRUE(pair.contains(2));
    EXPECT_EQ(link.codec.kind, compress::Kind::TopK);
  }
  for (const PlannedLink& link : plan.links) {
    const double ratio = static_cast<double>(link.dense.value) / static_cast<double>(link.bytes.value);
    EXPECT_TRUE(ratio == 1 || (ratio > 45 && ratio < 60)) << ratio;
  }
  EXPECT_TRUE(std::any_of(plan.explanation.begin(), plan.explanation.end(), [](const std::string& line) {
    return line.find("2 stay dense") != std::string::npos;
  }));
}

TEST_F(Compressed, SmallTensorsAndOtherTypesStayDense) {
  const LinkCodec link{0, 1, false, *compress::parse("fp16")};
  const auto codec = [&](dag::TensorSpec spec, uint32_t to = 1, bool backward = false) {
    return codec_of(std::span(&link, 1), 0, to, backward, spec).kind;
  };
  EXPECT_EQ(codec({dag::DType::F32, {16, 16}}), compress::Kind::Float16);
  EXPECT_EQ(codec({dag::DType::F32, {255}}), compress::Kind::Dense);
  EXPECT_EQ(codec({dag::DType::I64, {1024}}), compress::Kind::Dense);
  EXPECT_EQ(codec({dag::DType::F32, {16, 16}}, 2), compress::Kind::Dense);
  EXPECT_EQ(codec({dag::DType::F32, {16, 16}}, 1, true), compress::Kind::Dense);
}

// From a network that is no matter to one on which nothing helps: what is compressed is what has to be.
TEST_F(Compressed, AutoTakesTheGentlestCodecThatHidesALink) {
  const auto rank = [](const compress::Codec& codec) {
    return codec.kind == compress::Kind::Float16 ? 1 : 10 - codec.bits;
  };
  int before = 0;
  for (const double bytes_per_second : {1e11, 4e9, 2e9, 1e9, 5e8, 2.5e8, 1e8, 1e6, 1e4}) {
    SCOPED_TRACE(std::to_string(bytes_per_second) + " bytes a second");
    const ClusterView cluster = test::equal_devices(2, bytes_per_second, milliseconds(1));
    const Plan plan = planned(request(cluster, {.policy = CompressionPolicy::Auto}));
    double longest = 0;
    for (const StagePlan& stage : plan.stages)
      longest = std::max(longest, seconds(stage.forward + stage.backward));
    int strongest = 0;
    for (const LinkCodec& link : plan.codecs) {
      EXPECT_TRUE(link.codec.kind == compress::Kind::Float16 || link.codec.kind == compress::Kind::Blocks);
      EXPECT_GE(link.codec.bits == 0 ? 16 : link.codec.bits, 4);
      strongest = std::max(strongest, rank(link.codec));
    }
    for (const PlannedLink& link : plan.links) {
      const bool has_codec = std::any_of(plan.codecs.begin(), plan.codecs.end(), [&](const LinkCodec& other) {
        return other.from_stage == link.from_stage && other.to_stage == link.to_stage;
      });
      if (!has_codec) {
        EXPECT_LE(static_cast<double>(link.dense.value) / bytes_per_second, 1.001 * longest);
      }
    }
    EXPECT_GE(strongest, before);
    before = strongest;
    const Plan dense = planned(request(cluster));
    EXPECT_LE(seconds(plan.predicted_step), 1.01 * seconds(dense.predicted_step));
    if (bytes_per_second <= 1e6) {
      EXPECT_LT(4 * seconds(plan.predicted_step), seconds(dense.predicted_step));
    }
  }
  EXPECT_EQ(before, 6);
}

// Every cut adds to what reaches the last stage: the more there are, the gentler each has to be.
TEST_F(Compressed, AutoBoundsTheNoiseThatCutsGather) {
  int fewest_bits = 0;
  for (const uint32_t devices : {2u, 5u, 8u, 16u}) {
    SCOPED_TRACE(std::to_string(devices) + " stages");
    const ClusterView cluster = test::equal_devices(devices, 1e6, milliseconds(1));
    double before = 0;
    for (uint32_t gentler = 0; gentler < 5; ++gentler) {
      const Compression compression{.policy = CompressionPolicy::Auto, .gentler = gentler};
      const Plan plan = planned(request(cluster, compression));
      EXPECT_TRUE(is_within(noise_of(plan.codecs), noise_bound(compression))) << gentler << " times gentler";
      EXPECT_GE(seconds(plan.predicted_step), 0.9 * before);
      before = seconds(plan.predicted_step);
      if (gentler != 0) continue;
      fewest_bits = 16;
      for (const LinkCodec& link : plan.codecs)
        if (!link.backward) fewest_bits = std::min<int>(fewest_bits, link.codec.bits);
    }
  }
  EXPECT_GT(fewest_bits, 4) << "fifteen cuts at four bits are too many";
}

// What lies beside a slower link need not be as strong: here one link has a tenth of the others' rate.
TEST_F(Compressed, AutoIsGentlerBesideASlowerLink) {
  ClusterView cluster = test::equal_devices(3, 1e6, milliseconds(1));
  cluster.set_link(1, 2, {1e5, milliseconds(1)});
  cluster.set_link(2, 1, {1e5, milliseconds(1)});
  PlanRequest wanted = request(cluster, {.policy = CompressionPolicy::Auto});
  wanted.strategy = "equal-ops-joining";
  const Plan plan = planned(wanted);
  int bits_before = 0, bits_behind = 0;
  for (const LinkCodec& link : plan.codecs)
    (std::min(link.from_stage, link.to_stage) == 0 ? bits_before : bits_behind) = link.codec.bits;
  EXPECT_EQ(bits_behind, 4);
  EXPECT_TRUE(bits_before == 8 || bits_before == 0) << bits_before;
}

}  // namespace
}  // namespace weft::plan
