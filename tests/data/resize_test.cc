// Photos resized in whole numbers, against the same in doubles without rounding on the way.
#include "data/resize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/photos.h"

namespace weft::data {
namespace {

Photo photo_of(const test::Picture& picture, int orientation = 1) {
  return {picture.width, picture.height, static_cast<Orientation>(orientation), picture.pixels};
}

std::vector<uint8_t> resized(const Photo& photo, uint32_t resize, uint32_t edge) {
  std::vector<uint8_t> out(size_t{3} * edge * edge);
  resize_photo(photo, resize, edge, out);
  return out;
}

// A pixel of a photo made `width` x `height`, by the definition.
double pixel(const test::Picture& photo, double width, double height, double x, double y, size_t channel) {
  const auto weights = [](double out, double in, double at) {
    const double scale = std::max(1.0, in / out), centre = (at + 0.5) * in / out;
    std::vector<double> list(static_cast<size_t>(in));
    double sum = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      list[i] = std::max(0.0, 1 - std::abs(static_cast<double>(i) + 0.5 - centre) / scale);
      sum += list[i];
    }
    for (double& weight : list) weight /= sum;
    return list;
  };
  const auto across = weights(width, photo.width, x), down = weights(height, photo.height, y);
  double sum = 0;
  for (size_t j = 0; j < down.size(); ++j)
    for (size_t i = 0; i < across.size(); ++i)
      if (down[j] * across[i] > 0)
        sum += down[j] * across[i] * photo.pixels[(j * photo.width + i) * 3 + channel];
  return sum;
}

// As Python's round.
int64_t half_even(double value) { return std::llrint(value); }

TEST(Resize, IsWhatTheDefinitionSaysButForRounding) {
  struct Case {
    uint32_t width, height, resize, edge;
  };
  for (const auto& [width, height, resize, edge] : {Case{40, 30, 16, 16},
                                                    {30, 41, 16, 12},
                                                    {9, 7, 20, 20},
                                                    {64, 64, 32, 29},
                                                    {5, 50, 3, 2},
                                                    {1, 1, 4, 4}}) {
    SCOPED_TRACE(std::to_string(width) + "x" + std::to_string(height) + " to " + std::to_string(edge));
    const test::Picture picture = test::picture(width, height, width);
    const auto out = resized(photo_of(picture), resize, edge);
    const uint32_t shorter = std::min(width, height);
    const int64_t new_width = int64_t{width} * resize / shorter,
                  new_height = int64_t{height} * resize / shorter;
    const int64_t left = half_even(static_cast<double>(new_width - edge) / 2);
    const int64_t top = half_even(static_cast<double>(new_height - edge) / 2);
    for (size_t c = 0; c < 3; ++c)
      for (uint32_t y = 0; y < edge; ++y)
        for (uint32_t x = 0; x < edge; ++x)
          EXPECT_NEAR(out[(c * edge + y) * edge + x],
                      pixel(picture, static_cast<double>(new_width), static_cast<double>(new_height),
                            static_cast<double>(x + left), static_cast<double>(y + top), c),
                      1.001);
  }
}

TEST(Resize, APhotoOfTheSizeStaysAsItIs) {
  const test::Picture picture = test::picture(17, 17);
  const auto out = resized(photo_of(picture), 17, 17);
  for (size_t i = 0; i < 17 * 17; ++i)
    for (size_t c = 0; c < 3; ++c) EXPECT_EQ(out[c * 17 * 17 + i], picture.pixels[i * 3 + c]);
}

TEST(Resize, OneColourStaysThatColour) {
  test::Picture picture{301, 97, std::vector<uint8_t>(size_t{3} * 301 * 97, 255)};
  for (const uint8_t byte : resized(photo_of(picture), 33, 33)) ASSERT_EQ(byte, 255);
}

TEST(Resize, ATurnedPhotoGivesTheBytesOfTheUprightOne) {
  for (const auto& [width, height] : {std::pair{23u, 14u}, {14u, 23u}}) {
    const test::Picture upright = test::picture(width, height);
    const auto expected = resized(photo_of(upright), 10, 9);
    for (int orientation = 1; orientation <= 8; ++orientation)
      EXPECT_EQ(resized(photo_of(test::stored_as(upright, orientation), orientation), 10, 9), expected)
          << "orientation " << orientation;
  }
}

}  // namespace
}  // namespace weft::data
