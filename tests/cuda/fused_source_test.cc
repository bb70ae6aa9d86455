// Kernels of elementwise groups, made as text and run on the shim: a group gives the bits of its ops one by
// one and the values of the reference, whatever is stretched.
#include <limits>
#include <memory>

#include "tests/cuda/fused_samples.h"

namespace weft::peer {
namespace {

constexpr uint64_t kSeeds = 12;

TEST(FusedSource, AGroupGivesTheBitsOfItsOpsOneByOne) {
  const auto backend = test::cuda_on_host();
  std::vector<Sample> apart, fused;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    apart.push_back(Tangle(seed, /*in_one_group=*/false).finish());
    fused.push_back(Tangle(seed, /*in_one_group=*/true).finish());
  }
  std::vector<std::unique_ptr<Prepared>> one_by_one, together;
  for (size_t i = 0; i < apart.size(); ++i) {
    one_by_one.push_back(std::make_unique<Prepared>(*backend, apart[i].graph));
    together.push_back(std::make_unique<Prepared>(*backend, fused[i].graph));
  }
  ASSERT_TRUE(backend->prepare().has_value());
  for (size_t i = 0; i < apart.size(); ++i) {
    SCOPED_TRACE("seed " + std::to_string(i + 1));
    ASSERT_EQ(together[i]->size(), 1u);
    EXPECT_EQ(together[i]->kernel(0).implementation().substr(0, 5), "fused");
    const auto expected = one_by_one[i]->outputs(apart[i].inputs),
               actual = together[i]->outputs(fused[i].inputs),
               taken_over = together[i]->outputs(fused[i].inputs, /*in_place=*/true);
    for (size_t k = 0; k < expected.size(); ++k) {
      EXPECT_TRUE(same_bytes(actual[k], expected[k])) << "output " << k;
      EXPECT_TRUE(same_bytes(taken_over[k], expected[k])) << "output " << k << " in place";
    }
  }
}

TEST(FusedSource, AGroupIsCloseToTheReference) {
  const auto backend = test::cuda_on_host();
  std::vector<Sample> samples;
  for (uint64_t seed = 101; seed < 101 + kSeeds; ++seed)
    samples.push_back(Tangle(seed, /*in_one_group=*/true, /*calm=*/true).finish());
  std::vector<std::unique_ptr<Prepared>> prepared;
  for (const Sample& sample : samples) prepared.push_back(std::make_unique<Prepared>(*backend, sample.graph));
  for (size_t i = 0; i < samples.size(); ++i) {
    SCOPED_TRACE("seed " + std::to_string(101 + i));
    const auto expected = by_reference(samples[i]), actual = prepared[i]->outputs(samples[i].inputs);
    for (size_t k = 0; k < expected.size(); ++k)
      EXPECT_LE(relative_error(actual[k], expected[k]), 1e-5) << "output " << k;
  }
}

// Stretched operands of every kind, one op at a time, so that no error grows.
TEST(FusedSource, StretchedOperandsAreReadAsTheReferenceReadsThem) {
  const auto backend = test::cuda_on_host();
  std::vector<Sample> samples;
  for (const Shape& shape : kShapes) {
    SampleBuilder build(/*in_one_group=*/true);
    Rng rng(shape.size(), 3);
    const ValueId whole = build.input(random_tensor(shape, 1));
    for (uint64_t i = 0; i < 8; ++i)
      build.output(build.add(OpKind::Add, {whole, build.input(random_tensor(stretched(shape, rng), i + 2))}));
    samples.push_back(build.finish());
  }
  std::vector<std::unique_ptr<Prepared>> prepared;
  for (const Sample& sample : samples) prepared.push_back(std::make_unique<Prepared>(*backend, sample.graph));
  for (size_t i = 0; i < samples.size(); ++i) {
    SCOPED_TRACE("shape " + dag::to_string(kShapes[i]));
    const auto expected = by_reference(samples[i]), actual = prepared[i]->outputs(samples[i].inputs);
    for (size_t k = 0; k < expected.size(); ++k)
      EXPECT_TRUE(same_bytes(actual[k], expected[k])) << "output " << k;
  }
}

TEST(FusedSource, SpecialNumbersGoWhereTheyGoInTheReference) {
  const auto backend = test::cuda_on_host();
  SampleBuilder build(/*in_one_group=*/true);
  const Tensor special = special_floats();
  const int64_t count = special.element_count();
  const ValueId x = build.input(special);
  std::vector<std::string> names;
  const auto put = [&](OpKind kind, std::vector<ValueId> operands, const Attributes& attributes = {}) {
    names.push_back(std::string(to_string(kind)));
    build.output(build.add(kind, std::move(operands), attributes));
  };
  for (const OpKind kind : kUnary) put(kind, {x});
  put(OpKind::Gelu, {x}, {{Attr::Approximate, int64_t{1}}});
  put(OpKind::IsNaN, {x});
  put(OpKind::IsInf, {x});
  put(OpKind::RoundThrough, {x});
  put(OpKind::Clip, {x}, {{Attr::Min, -1.5}, {Attr::Max, 2.25}});
  put(OpKind::Clip, {x}, {{Attr::Max, 2.25}});
  for (const OpKind kind : {OpKind::TanhGrad, OpKind::ReluGrad, OpKind::SigmoidGrad}) put(kind, {x, x});
  const Sample one = build.finish();

  SampleBuilder pairs(/*in_one_group=*/true);
  std::vector<float> left, right;
  for (int64_t i = 0; i < count * count; ++i) {
    left.push_back(special.as<float>()[static_cast<size_t>(i / count)]);
    right.push_back(special.as<float>()[static_cast<size_t>(i % count)]);
  }
  const ValueId a = pairs.input(dag::make_tensor({count * count}, std::span<const float>(left))),
                b = pairs.input(dag::make_tensor({count * count}, std::span<const float>(right)));
  std::vector<std::string> pair_names;
  for (const OpKind kind :
       {OpKind::Add, OpKind::Sub, OpKind::Mul, OpKind::Div, OpKind::Min, OpKind::Max, OpKind::Mod,
        OpKind::Pow, OpKind::Equal, OpKind::Less, OpKind::LessEqual, OpKind::Greater, OpKind::GreaterEqual}) {
    pair_names.push_back(std::string(to_string(kind)));
    pairs.output(pairs.add(kind, {a, b}));
  }
  pair_names.push_back("Mod C");
  pairs.output(pairs.add(OpKind::Mod, {a, b}, {{Attr::Fmod, int64_t{1}}}));
  const Sample two = pairs.finish();

  Prepared unary(*backend, one.graph), binary(*backend, two.graph);
  const auto compare = [](Prepared& prepared, const Sample& sample, const std::vector<std::string>& of) {
    const auto expected = by_reference(sample), actual = prepared.outputs(sample.inputs);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_LE(worst_error(actual[i], expected[i]), 1e-6) << of[i];
  };
  compare(unary, one, names);
  compare(binary, two, pair_names);
}

Graph sum_of(const Shape& a, const Shape& b, int names_before = 0) {
  GraphBuilder builder(dag::op_table());
  for (int i = 0; i < names_before; ++i) builder.input("other" + std::to_string(i), {DType::F32, {3}});
  const ValueId x = builder.input("a", {DType::F32, a}), y = builder.input("b", {DType::F32, b});
  builder.output("y", builder.add(OpKind::Add, {x, y}), OutputRole::Prediction);
  return builder.finish();
}

TEST(FusedSource, EqualGroupsAreOneKernel) {
  const cuda::FusedSource one = source_of(sum_of({4, 8}, {8})), same = source_of(sum_of({4, 8}, {8}, 3)),
                          longer = source_of(sum_of({9, 8}, {8})), other = source_of(sum_of({4, 8}, {4, 1}));
  EXPECT_EQ(one.source.name, same.source.name);
  EXPECT_EQ(one.source.code, same.source.code);
  EXPECT_EQ(one.source.code, longer.source.code);
  EXPECT_NE(one.source.name, other.source.name);
}

TEST(FusedSource, OnlyAWholeOperandOfTheSameTypeIsTakenOver) {
  EXPECT_EQ(source_of(sum_of({4, 8}, {8})).in_place, std::vector<int>{0});
  EXPECT_EQ(source_of(sum_of({8}, {4, 8})).in_place, std::vector<int>{1});
  EXPECT_EQ(source_of(sum_of({4, 1}, {8})).in_place, std::vector<int>{-1});
  GraphBuilder builder(dag::op_table());
  const ValueId x = builder.input("x", {DType::F32, {8}});
  builder.output("y", builder.add(OpKind::Less, {x, x}), OutputRole::Prediction);
  EXPECT_EQ(source_of(builder.finish()).in_place, std::vector<int>{-1});
}

TEST(FusedSource, LongTensorsAreCountedInSixtyFourBits) {
  const int64_t most = int64_t{1} << 31, beyond = most + 4;
  const cuda::FusedSource narrow = source_of(sum_of({most}, {1})), wide = source_of(sum_of({beyond}, {1})),
                          longest = source_of(sum_of({dag::kElementCountMax}, {1}));
  EXPECT_NE(narrow.source.code.find("const uint32_t i ="), std::string::npos);
  EXPECT_NE(wide.source.code.find("const uint64_t i ="), std::string::npos);
  EXPECT_EQ(wide.grid.blocks, static_cast<uint32_t>(beyond / 1024 + 1));
  EXPECT_LT(longest.grid.blocks, uint32_t{1} << 31);
}

TEST(FusedSource, WhatIsNotServedIsDeclined) {
  const auto declines = [](OpKind kind, DType dtype) {
    GraphBuilder builder(dag::op_table());
    const ValueId x = builder.input("x", {dtype, {8}});
    builder.output("y", builder.add(kind, {x}), OutputRole::Prediction);
    const Graph graph = builder.finish();
    return !cuda::make_fused_source(graph, group_signatures(graph).front()).has_value();
  };
  for (const DType dtype : {DType::F64, DType::F16, DType::BF16}) EXPECT_TRUE(declines(OpKind::Exp, dtype));
  EXPECT_FALSE(declines(OpKind::Exp, DType::F32));
  EXPECT_FALSE(declines(OpKind::Neg, DType::I16));
}

}  // namespace
}  // namespace weft::peer
