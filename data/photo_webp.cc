#include <webp/decode.h>

#include <cstring>

#include "data/photo.h"

namespace weft::data {
namespace {

// RIFF: chunks of a name, a size and a body, padded to even sizes.
Orientation orientation_of(std::span<const std::byte> bytes) {
  for (size_t at = 12; at + 8 <= bytes.size();) {
    size_t size = 0;
    for (size_t i = 4; i-- > 0;) size = size << 8 | static_cast<size_t>(bytes[at + 4 + i]);
    if (size > bytes.size() - at - 8) break;
    if (std::memcmp(bytes.data() + at, "EXIF", 4) == 0) {
      auto body = bytes.subspan(at + 8, size);
      if (size >= 6 && std::memcmp(body.data(), "Exif\0\0", 6) == 0) body = body.subspan(6);
      return exif_orientation(body);
    }
    at += 8 + size + size % 2;
  }
  return Orientation::Upright;
}

}  // namespace

Result<Photo> decode_webp(std::span<const std::byte> bytes, uint64_t pixels_max) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  WebPBitstreamFeatures features{};
  if (WebPGetFeatures(data, bytes.size(), &features) != VP8_STATUS_OK)
    return fail(ErrorCode::Corrupted, "is a damaged WebP");
  if (features.has_animation != 0)
    return fail(ErrorCode::Unsupported, "is animated; write its first picture: convert 'FILE[0]' FILE");
  if (features.width < 0 || features.height < 0) return fail(ErrorCode::Corrupted, "is a damaged WebP");
  WEFT_TRY(Photo photo, photo_of_size(static_cast<uint64_t>(features.width),
                                      static_cast<uint64_t>(features.height), pixels_max));
  photo.orientation = orientation_of(bytes);
  if (WebPDecodeRGBInto(data, bytes.size(), photo.pixels.data(), photo.pixels.size(), features.width * 3) ==
      nullptr)
    return fail(ErrorCode::Corrupted, "is a damaged WebP, or one that is cut off");
  return photo;
}

}  // namespace weft::data
