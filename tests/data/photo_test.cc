#include "data/photo.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/data/reading.h"
#include "tests/support/photos.h"

namespace weft::data {
namespace {

using test::JpegKind;
using test::Picture;
using test::PngKind;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

Photo decoded(const std::string& file) {
  auto photo = decode_photo(bytes_of(file));
  EXPECT_TRUE(photo.has_value()) << (photo ? "" : photo.error().message);
  return photo.value_or(Photo{});
}

// The mean distance of all channels.
double distance(const Photo& photo, const std::vector<uint8_t>& pixels) {
  EXPECT_EQ(photo.pixels.size(), pixels.size());
  double sum = 0;
  for (size_t i = 0; i < pixels.size() && i < photo.pixels.size(); ++i)
    sum += std::abs(int{photo.pixels[i]} - int{pixels[i]});
  return sum / static_cast<double>(pixels.size());
}

std::vector<uint8_t> greyed(const Picture& picture) {
  std::vector<uint8_t> grey;
  for (size_t i = 0; i < picture.pixels.size(); ++i) grey.push_back(picture.pixels[i / 3 * 3]);
  return grey;
}

const Picture kPicture = test::picture(33, 21);

TEST(Photo, LosslessFilesGiveTheirPixels) {
  for (const std::string& file :
       {test::png(kPicture), test::png(kPicture, PngKind::Interlaced), test::png(kPicture, PngKind::Deep),
        test::png(kPicture, PngKind::Alpha), test::webp(kPicture)}) {
    const Photo photo = decoded(file);
    EXPECT_EQ(photo.width, 33u);
    EXPECT_EQ(photo.height, 21u);
    EXPECT_EQ(photo.pixels, kPicture.pixels);
  }
}

TEST(Photo, GreyIsEqualChannels) {
  for (const PngKind kind : {PngKind::Grey, PngKind::GreyAlpha, PngKind::DeepGrey})
    EXPECT_EQ(decoded(test::png(kPicture, kind)).pixels, greyed(kPicture));
  const Photo photo = decoded(test::jpeg(kPicture, JpegKind::Grey));
  for (size_t i = 0; i < photo.pixels.size(); ++i) ASSERT_EQ(photo.pixels[i], photo.pixels[i / 3 * 3]);
  for (const uint8_t value : decoded(test::png(kPicture, PngKind::OneBit)).pixels)
    ASSERT_TRUE(value == 0 || value == 255);
}

TEST(Photo, APaletteIsLookedUpWithoutItsAlpha) {
  const Photo photo = decoded(test::png(kPicture, PngKind::Palette));
  for (size_t i = 0; i < kPicture.pixels.size() / 3; ++i) {
    const uint8_t at = kPicture.pixels[i * 3];
    ASSERT_EQ(photo.pixels[i * 3], at);
    ASSERT_EQ(photo.pixels[i * 3 + 1], 255 - at);
    ASSERT_EQ(photo.pixels[i * 3 + 2], at / 2);
  }
  EXPECT_EQ(decoded(test::png(kPicture, PngKind::PaletteAlpha)).pixels, photo.pixels);
}

TEST(Photo, LossyFilesComeClose) {
  for (const JpegKind kind : {JpegKind::Plain, JpegKind::Progressive, JpegKind::Cmyk})
    EXPECT_LT(distance(decoded(test::jpeg(kPicture, kind)), kPicture.pixels), 4) << static_cast<int>(kind);
  EXPECT_LT(distance(decoded(test::lossy_webp(kPicture)), kPicture.pixels), 8);
  EXPECT_EQ(decoded(test::alpha_webp(kPicture)).width, 33u);
}

TEST(Photo, OrientationIsThatOfExif) {
  for (int orientation = 1; orientation <= 8; ++orientation) {
    EXPECT_EQ(static_cast<int>(decoded(test::jpeg_with_exif(test::jpeg(kPicture), orientation)).orientation),
              orientation);
    EXPECT_EQ(static_cast<int>(decoded(test::png_with_exif(test::png(kPicture), orientation)).orientation),
              orientation);
  }
  EXPECT_EQ(decoded(test::jpeg_with_exif(test::jpeg(kPicture), 9)).orientation, Orientation::Upright);
}

TEST(Photo, WhatIsNoPhotoIsRefusedByName) {
  const auto refused = [](const std::string& file, ErrorCode code, std::string_view part) {
    return fails_with(decode_photo(bytes_of(file), 1 << 20), code, part);
  };
  EXPECT_TRUE(refused("", ErrorCode::Corrupted, "is empty"));
  EXPECT_TRUE(refused("hello", ErrorCode::Corrupted, "is no JPEG, PNG or WebP"));
  EXPECT_TRUE(refused("GIF89a", ErrorCode::Unsupported, "though a picture; convert it"));
  EXPECT_TRUE(refused(test::animated_png(test::png(kPicture)), ErrorCode::Unsupported, "is animated"));
  EXPECT_TRUE(refused(test::animated_webp(), ErrorCode::Unsupported, "is animated"));
  const std::string jpeg = test::jpeg(kPicture), png = test::png(kPicture), webp = test::webp(kPicture);
  EXPECT_TRUE(refused(jpeg.substr(0, jpeg.size() - 40), ErrorCode::Corrupted, "damaged JPEG: Premature end"));
  EXPECT_TRUE(refused(png.substr(0, png.size() / 2), ErrorCode::Corrupted, "damaged PNG"));
  EXPECT_TRUE(refused(webp.substr(0, webp.size() / 2), ErrorCode::Corrupted, "WebP"));
}

TEST(Photo, ABombIsKnownByItsHeader) {
  for (const auto& [width, height] : {std::pair{1u << 30, 1u << 30}, {65535u, 65535u}, {8193u, 8192u}})
    EXPECT_TRUE(fails_with(decode_photo(bytes_of(test::png_bomb(width, height))),
                           ErrorCode::ResourceExhausted, "at most 67108864 are read"));
  // A JPEG says its size in the two words behind the precision of its frame.
  std::string jpeg = test::jpeg(kPicture);
  const size_t frame = jpeg.find("\xFF\xC0");
  ASSERT_NE(frame, std::string::npos);
  for (size_t i = 5; i < 9; ++i) jpeg[frame + i] = '\xFF' - (i % 2 == 0 ? 0x37 : 0);
  EXPECT_TRUE(fails_with(decode_photo(bytes_of(jpeg)), ErrorCode::ResourceExhausted, "pixels, and at most"));
}

TEST(Photo, BytesBetweenThePartsOfAJpegDoNoHarm) {
  const std::string jpeg = test::jpeg(kPicture);
  const std::string with =
      jpeg.substr(0, jpeg.size() - 2) + std::string(40, 'x') + jpeg.substr(jpeg.size() - 2);
  EXPECT_EQ(decoded(with).pixels, decoded(jpeg).pixels);
}

}  // namespace
}  // namespace weft::data
