#include "replicas/parts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "replicas/agreement.h"
#include "replicas/mean_check.h"

namespace weft::replicas {
namespace {

static_assert(kPartUnit % kMeanPiece == 0 && kMeanPiece % compress::kDrawBlock == 0);

TEST(Parts, AreAllOfATensorAndOfAboutTheSameLength) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 71);
    const size_t elements = 1 + rng.below(uint64_t{1} << (1 + rng.below(30)));
    const size_t all = elements + rng.below(uint64_t{1} << (1 + rng.below(32)));
    const auto parts = parts_of(elements, all);
    ASSERT_LE(parts.size(), 256u);
    size_t end = 0;
    for (const Part& part : parts) {
      EXPECT_EQ(part.first, end);
      EXPECT_EQ(part.first % kPartUnit, 0u);
      EXPECT_GT(part.count, 0u);
      EXPECT_LE(part.count, parts.front().count);
      EXPECT_LE(part.count, std::max(kPartUnit, all / 256 + kPartUnit)) << "one owner would have too much";
      end = part.first + part.count;
    }
    EXPECT_EQ(end, elements);
  }
}

TEST(Parts, NothingSmallIsDivided) {
  EXPECT_EQ(parts_of(0, 10), (std::vector<Part>{{0, 0}}));
  EXPECT_EQ(parts_of(kPartUnit, kPartUnit), (std::vector<Part>{{0, kPartUnit}}));
  EXPECT_EQ(parts_of(kPartUnit + 1, kPartUnit + 1).size(), 2u);
  EXPECT_EQ(parts_of(size_t{1} << 20, size_t{1} << 30).size(), 1u) << "it is little of the model";
  EXPECT_EQ(parts_of(kPartsEnd + 1, kPartsEnd + 1).size(), 1u) << "its parts would have no numbers";
}

TEST(Parts, ANumberSaysWhichTensorAndWhereInIt) {
  std::vector<uint32_t> numbers;
  for (const uint32_t place : {0u, 1u, 70'000u, kPlacesMax - 1})
    for (const size_t first : {size_t{0}, kPartUnit, 3 * kPartUnit, kPartsEnd - kPartUnit}) {
      numbers.push_back(agreed_number(place, first));
      EXPECT_EQ(place_of(numbers.back()), place);
      EXPECT_EQ(first_of(numbers.back()), first);
    }
  EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end(), is_before)) << "by tensor, then by part";
  EXPECT_EQ(agreed_number(5, 0), 5u);
}

// Whoever adds up which part: together they are what one owner of the tensor would have sent.
TEST(Parts, WhatIsReadOfThemIsWhatIsReadOfTheWhole) {
  for (const char* name : {"dense", "int8", "int4", "int3", "fp16", "bf16"}) {
    SCOPED_TRACE(name);
    const auto codec = compress::parse(name).value();
    ASSERT_TRUE(compress::is_by_parts(codec));
    Rng rng(3, 72);
    std::vector<float> values(2 * kPartUnit + 777);
    for (float& value : values) value = static_cast<float>(rng.normal());
    std::vector<float> residue(values.size(), 0.25F), whole = values, whole_residue = residue;
    PassScratch scratch;
    ASSERT_TRUE(pass_through(codec, draw_of(7, 30, 4, 1), whole, whole_residue, scratch));
    for (const Part& part : parts_of(values.size(), values.size()))
      ASSERT_TRUE(pass_through(codec, draw_of(7, 30, agreed_number(4, part.first), 1),
                               std::span(values).subspan(part.first, part.count),
                               std::span(residue).subspan(part.first, part.count), scratch));
    EXPECT_TRUE(values == whole);
    EXPECT_TRUE(residue == whole_residue);
  }
}

}  // namespace
}  // namespace weft::replicas
