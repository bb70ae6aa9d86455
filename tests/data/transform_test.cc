// Columns that are scaled, mirrored and cut, against loops that can be checked by eye.
#include <gtest/gtest.h>

#include <set>

#include "data/loader.h"
#include "data/npz_writer.h"
#include "tests/data/reading.h"
#include "tests/support/scratch.h"

namespace weft::data {
namespace {

using test::Scratch;

// Pictures u8[n, 3, 6, 8] that count from zero, and numbers of every type.
class Transformed : public ::testing::Test {
 protected:
  static constexpr int64_t kCount = 40;

  void SetUp() override {
    dag::Tensor pictures({dag::DType::U8, {kCount, 3, 6, 8}});
    for (size_t i = 0; i < pictures.bytes().size(); ++i)
      pictures.mutable_bytes()[i] = static_cast<std::byte>(i * 7 % 251);
    std::vector<NpzArray> arrays{{"image", pictures}};
    std::vector<int64_t> numbers;
    for (int64_t i = 0; i < kCount * 2; ++i) numbers.push_back(i);
    for (const dag::DType dtype : {dag::DType::U16, dag::DType::I32, dag::DType::F16, dag::DType::F64})
      arrays.push_back({std::string(to_string(dtype)), dag::from_int64s({dtype, {kCount, 2}}, numbers)});
    const auto bytes = npz_bytes(arrays);
    ASSERT_TRUE(bytes.has_value());
    path_ = scratch_.write("d.npz", *bytes);
    stored_ = pictures;
  }

  std::unique_ptr<Dataset> open(const Transforms& transforms) {
    auto opened = open_dataset(NpzSpec{path_, {}, transforms});
    EXPECT_TRUE(opened.has_value()) << (opened ? "" : opened.error().message);
    return opened ? std::move(*opened) : nullptr;
  }
  uint8_t pixel(size_t sample, size_t channel, size_t y, size_t x) const {
    return static_cast<uint8_t>(stored_.bytes()[((sample * 3 + channel) * 6 + y) * 8 + x]);
  }

  Scratch scratch_;
  std::filesystem::path path_;
  dag::Tensor stored_;
};

TEST_F(Transformed, EachTypeIsScaledAndShiftedPerEntry) {
  for (const char* name : {"u16", "i32", "f16", "f64"}) {
    SCOPED_TRACE(name);
    const auto dataset = open({{name, {.scale = 0.5, .mean = {1, 2}, .deviation = {4, 8}}}});
    const auto column = read_column(*dataset, name, {3});
    ASSERT_EQ(column.dtype(), dag::DType::F32);
    EXPECT_EQ(column.as<float>()[0], static_cast<float>((6 * 0.5 - 1) / 4));
    EXPECT_EQ(column.as<float>()[1], static_cast<float>((7 * 0.5 - 2) / 8));
  }
}

TEST_F(Transformed, APixelIsScaledByTheNumbersOfItsChannel) {
  const auto dataset =
      open({{"image", {.scale = 1.0 / 255, .mean = {0.5, 0.25, 0.125}, .deviation = {0.25}}}});
  const auto images = read_column(*dataset, "image", {5});
  for (size_t channel = 0; channel < 3; ++channel)
    for (size_t i = 0; i < 48; ++i)
      EXPECT_EQ(images.as<float>()[channel * 48 + i],
                static_cast<float>(
                    (pixel(5, channel, i / 8, i % 8) * (1.0 / 255) - std::vector{0.5, 0.25, 0.125}[channel]) /
                    0.25));
}

TEST_F(Transformed, WithoutChanceTheMiddleIsCutOut) {
  const auto dataset = open({{"image", {.flip = true, .crop = 4}}});
  const auto images = read_column(*dataset, "image", {9});
  ASSERT_EQ(images.shape(), (dag::Shape{1, 3, 4, 4}));
  for (size_t i = 0; i < 48; ++i)
    EXPECT_EQ(static_cast<uint8_t>(images.bytes()[i]), pixel(9, i / 16, 1 + i / 4 % 4, 2 + i % 4));
}

// Where the sample was cut out, and whether it was mirrored: -1 where it is no view of the sample at all.
struct View {
  int top = -1, left = -1;
  bool mirrored = false;
  auto operator<=>(const View&) const = default;
};

TEST_F(Transformed, WhatIsDrawnIsAViewOfTheSampleAndTakesEachOne) {
  const auto dataset = open({{"image", {.flip = true, .crop = 4}}});
  std::set<View> seen;
  for (uint64_t epoch = 0; epoch < 60; ++epoch)
    for (uint32_t sample = 0; sample < kCount; ++sample) {
      std::vector<std::byte> out(48);
      ASSERT_TRUE(dataset->read_drawn(0, {&sample, 1}, {7, epoch * kCount}, out).has_value());
      View found;
      for (int top = 0; top <= 2; ++top)
        for (int left = 0; left <= 4; ++left)
          for (const bool mirrored : {false, true}) {
            bool equal = true;
            for (size_t i = 0; i < 48 && equal; ++i) {
              const size_t x = mirrored ? 3 - i % 4 : i % 4;
              equal =
                  static_cast<uint8_t>(out[i]) ==
                  pixel(sample, i / 16, static_cast<size_t>(top) + i / 4 % 4, static_cast<size_t>(left) + x);
            }
            if (equal) found = {top, left, mirrored};
          }
      ASSERT_GE(found.top, 0) << "epoch " << epoch << ", sample " << sample;
      seen.insert(found);
    }
  EXPECT_EQ(seen.size(), 3u * 5 * 2);
}

TEST_F(Transformed, ADrawDependsOnSeedEpochAndSampleAlone) {
  const auto dataset = open({{"image", {.flip = true, .crop = 4}}});
  const std::vector<Feed> feeds{{"x", 0}};
  // The same steps in microbatches of other sizes, and read in another order.
  const auto of_step = [&](uint64_t seed, uint32_t microbatch, uint64_t first_step) {
    std::vector<std::byte> bytes;
    const auto source = training_requests(SampleSequence(kCount, true, seed), first_step, 12, 8, microbatch);
    while (const auto request = source()) {
      const auto read = read_microbatch(*dataset, feeds, *request);
      EXPECT_TRUE(read.has_value());
      const auto& tensor = read->tensors.at("x");
      bytes.insert(bytes.end(), tensor.bytes().begin(), tensor.bytes().end());
    }
    return bytes;
  };
  const auto whole = of_step(3, 8, 1);
  EXPECT_EQ(of_step(3, 2, 1), whole);
  EXPECT_NE(of_step(4, 8, 1), whole);
  const auto later = of_step(3, 4, 9);
  ASSERT_LT(later.size(), whole.size());
  EXPECT_TRUE(std::equal(later.begin(), later.end(), whole.end() - static_cast<ptrdiff_t>(later.size())));
  // Steps 1 to 5 are the first epoch; the second shows the same samples otherwise.
  std::vector<uint32_t> all(kCount);
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::byte> first(48 * kCount), second(48 * kCount), evaluated(48 * kCount);
  ASSERT_TRUE(dataset->read_drawn(0, all, {3, 0}, first).has_value());
  ASSERT_TRUE(dataset->read_drawn(0, all, {3, kCount}, second).has_value());
  EXPECT_NE(first, second);
  const auto evaluation = evaluation_requests(kCount, kCount);
  const auto read = read_microbatch(*dataset, feeds, *evaluation());
  ASSERT_TRUE(dataset->read(0, all, evaluated).has_value());
  EXPECT_TRUE(std::equal(evaluated.begin(), evaluated.end(), read->tensors.at("x").bytes().begin()));
}

TEST_F(Transformed, WhatDoesNotFitTheColumnIsRefused) {
  const auto refused = [&](const Transforms& transforms, ErrorCode code, std::string_view part) {
    return fails_with(open_dataset(NpzSpec{path_, {}, transforms}), code, part);
  };
  EXPECT_TRUE(refused({{"imagee", {.flip = true}}}, ErrorCode::NotFound, "names 'imagee', and the data has"));
  EXPECT_TRUE(refused({{"u16", {.flip = true}}}, ErrorCode::InvalidArgument, "`augment` needs pictures"));
  EXPECT_TRUE(refused({{"image", {.crop = 7}}}, ErrorCode::InvalidArgument, "a crop of 7 pixels is larger"));
  EXPECT_TRUE(refused({{"image", {.mean = {1, 2}}}}, ErrorCode::InvalidArgument,
                      "`mean` has 2 numbers for column 'image', whose samples are u8[3,6,8]; write 3"));
}

}  // namespace
}  // namespace weft::data
