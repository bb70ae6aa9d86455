#include "data/photo.h"

#include <cstring>

namespace weft::data {
namespace {

bool starts(std::span<const std::byte> bytes, std::string_view magic, size_t at = 0) {
  return bytes.size() >= at + magic.size() && std::memcmp(bytes.data() + at, magic.data(), magic.size()) == 0;
}

// Numbers of a TIFF header, in the order of bytes that it says.
class Tiff {
 public:
  Tiff(std::span<const std::byte> bytes, bool is_big) : bytes_(bytes), is_big_(is_big) {}
  uint32_t number(size_t at, size_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at) return 0;
    uint32_t value = 0;
    for (size_t i = 0; i < size; ++i)
      value = value << 8 | static_cast<uint32_t>(bytes_[at + (is_big_ ? i : size - 1 - i)]);
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  bool is_big_;
};

}  // namespace

PhotoFormat photo_format(std::span<const std::byte> bytes) {
  if (starts(bytes, "\xFF\xD8\xFF")) return PhotoFormat::Jpeg;
  if (starts(bytes, "\x89PNG\r\n\x1A\n")) return PhotoFormat::Png;
  if (starts(bytes, "RIFF") && starts(bytes, "WEBP", 8)) return PhotoFormat::Webp;
  return PhotoFormat::Unknown;
}

Orientation exif_orientation(std::span<const std::byte> tiff) {
  constexpr uint32_t kOrientationTag = 0x0112, kShort = 3;
  if (!starts(tiff, "II") && !starts(tiff, "MM")) return Orientation::Upright;
  const Tiff read(tiff, tiff[0] == std::byte{'M'});
  const size_t directory = read.number(4, 4);
  const size_t entries = read.number(directory, 2);
  for (size_t i = 0; i < entries; ++i) {
    const size_t at = directory + 2 + i * 12;
    if (at >= tiff.size()) break;
    if (read.number(at, 2) != kOrientationTag || read.number(at + 2, 2) != kShort) continue;
    const uint32_t value = read.number(at + 8, 2);
    return value >= 1 && value <= 8 ? static_cast<Orientation>(value) : Orientation::Upright;
  }
  return Orientation::Upright;
}

Result<Photo> photo_of_size(uint64_t width, uint64_t height, uint64_t pixels_max) {
  const std::string says = "is " + std::to_string(width) + " x " + std::to_string(height) + " pixels";
  if (width == 0 || height == 0) return fail(ErrorCode::Corrupted, says);
  if (width > UINT32_MAX || height > UINT32_MAX || width > pixels_max / height)
    return fail(ErrorCode::ResourceExhausted,
                says + ", and at most " + std::to_string(pixels_max) +
                    " are read; make it smaller: " + "convert FILE -resize 2048x2048 FILE");
  Photo photo;
  photo.width = static_cast<uint32_t>(width);
  photo.height = static_cast<uint32_t>(height);
  try {
    photo.pixels.resize(static_cast<size_t>(width * height * 3));
  } catch (const std::exception&) {
    return fail(ErrorCode::ResourceExhausted, says + ", for which there is no memory");
  }
  return photo;
}

Result<Photo> decode_photo(std::span<const std::byte> bytes, uint64_t pixels_max) {
  switch (photo_format(bytes)) {
    case PhotoFormat::Jpeg:
      return decode_jpeg(bytes, pixels_max);
    case PhotoFormat::Png:
      return decode_png(bytes, pixels_max);
    case PhotoFormat::Webp:
      return decode_webp(bytes, pixels_max);
    case PhotoFormat::Unknown:
      break;
  }
  if (bytes.empty()) return fail(ErrorCode::Corrupted, "is empty");
  if (starts(bytes, "GIF8") || starts(bytes, "BM") || starts(bytes, "ftyp", 4) || starts(bytes, "II*") ||
      starts(bytes, "MM"))
    return fail(ErrorCode::Unsupported,
                "is no JPEG, PNG or WebP, though a picture; convert it: convert FILE FILE.png");
  return fail(ErrorCode::Corrupted, "is no JPEG, PNG or WebP");
}

}  // namespace weft::data
