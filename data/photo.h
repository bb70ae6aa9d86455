// Photos as bytes of red, green and blue: JPEG, PNG and WebP, decoded by libjpeg-turbo (its exact integer
// transform), libspng and libwebp. What is not three channels of eight bits becomes that: grey is repeated, a
// palette looked up, alpha left out, CMYK mixed, sixteen bits rounded to eight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::data {

// Which way up a camera was held, as EXIF says it: 1 to 8.
enum class Orientation : uint8_t {
  Upright = 1,
  Mirrored,
  UpsideDown,
  UpsideDownMirrored,
  MirroredTurnedLeft,
  TurnedLeft,
  MirroredTurnedRight,
  TurnedRight
};

struct Photo {
  uint32_t width = 0, height = 0;  // as they are stored
  Orientation orientation = Orientation::Upright;
  std::vector<uint8_t> pixels;  // red, green, blue; row by row
};

enum class PhotoFormat : uint8_t { Unknown, Jpeg, Png, Webp };
PhotoFormat photo_format(std::span<const std::byte> bytes);

// How large it is, without decoding it.
struct PhotoSize {
  uint32_t width = 0, height = 0;
};

inline constexpr uint64_t kPhotoPixelsMax = uint64_t{1} << 26;
inline constexpr uint64_t kPhotoFileMax = uint64_t{256} << 20;  // bytes

// Corrupted, Unsupported or, for more than `pixels_max` pixels, ResourceExhausted; the size is known before
// memory is taken. Messages do not name the file: the caller knows it.
Result<Photo> decode_photo(std::span<const std::byte> bytes, uint64_t pixels_max = kPhotoPixelsMax);

// What EXIF says, in the bytes that begin with its TIFF header; Upright where it says nothing that is
// understood.
Orientation exif_orientation(std::span<const std::byte> tiff);

// Each format's own, behind decode_photo.
Result<Photo> decode_jpeg(std::span<const std::byte> bytes, uint64_t pixels_max);
Result<Photo> decode_png(std::span<const std::byte> bytes, uint64_t pixels_max);
Result<Photo> decode_webp(std::span<const std::byte> bytes, uint64_t pixels_max);

// Zeros for that many pixels, or what is wrong with their number.
Result<Photo> photo_of_size(uint64_t width, uint64_t height, uint64_t pixels_max);

}  // namespace weft::data
