#include <turbojpeg.h>

#include <cstring>
#include <memory>
#include <optional>

#include "data/photo.h"

namespace weft::data {
namespace {

struct EndTurbo {
  void operator()(void* handle) const { tjDestroy(handle); }
};
using Turbo = std::unique_ptr<void, EndTurbo>;

// What stands in the markers before the picture.
struct Markers {
  Orientation orientation = Orientation::Upright;
  bool is_adobe = false;  // CMYK is stored inverted then
};

void look_at(uint8_t kind, std::span<const std::byte> body, Markers& markers) {
  const auto begins = [&](std::string_view text) {
    return body.size() >= text.size() && std::memcmp(body.data(), text.data(), text.size()) == 0;
  };
  if (kind == 0xE1 && begins({"Exif\0\0", 6})) markers.orientation = exif_orientation(body.subspan(6));
  if (kind == 0xEE && begins("Adobe")) markers.is_adobe = true;
}

Markers markers_of(std::span<const std::byte> bytes) {
  Markers markers;
  size_t at = 2;
  while (at + 4 <= bytes.size() && bytes[at] == std::byte{0xFF}) {
    const auto kind = static_cast<uint8_t>(bytes[at + 1]);
    if (kind == 0xFF) {  // fill bytes
      ++at;
      continue;
    }
    if (kind == 0xDA || kind == 0xD9) break;
    const size_t size = static_cast<size_t>(bytes[at + 2]) << 8 | static_cast<size_t>(bytes[at + 3]);
    if (size < 2 || size > bytes.size() - at - 2) break;
    look_at(kind, bytes.subspan(at + 4, size - 2), markers);
    at += 2 + size;
  }
  return markers;
}

// Both ways round: 255 is all of an ink, or none.
void mix_inks(const std::vector<uint8_t>& inks, bool is_inverted, std::vector<uint8_t>& pixels) {
  const auto light = [&](uint8_t ink) { return is_inverted ? ink : static_cast<uint8_t>(255 - ink); };
  for (size_t i = 0; i < pixels.size() / 3; ++i)
    for (size_t c = 0; c < 3; ++c)
      pixels[i * 3 + c] = static_cast<uint8_t>((light(inks[i * 4 + c]) * light(inks[i * 4 + 3]) + 127) / 255);
}

// Bytes that stand between two parts are often there, and leave the picture as it is.
bool is_harmless(const Turbo& turbo) {
  return tjGetErrorCode(turbo.get()) == TJERR_WARNING &&
         std::strstr(tjGetErrorStr2(turbo.get()), "extraneous bytes") != nullptr;
}

tl::unexpected<Error> broken(const Turbo& turbo) {
  return fail(ErrorCode::Corrupted, std::string("is a damaged JPEG: ") + tjGetErrorStr2(turbo.get()));
}

}  // namespace

Result<Photo> decode_jpeg(std::span<const std::byte> bytes, uint64_t pixels_max) {
  constexpr int kExact = TJFLAG_ACCURATEDCT | TJFLAG_LIMITSCANS;
  const Turbo turbo(tjInitDecompress());
  if (!turbo) return fail(ErrorCode::ResourceExhausted, "no memory to decode it");
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto size = static_cast<unsigned long>(bytes.size());
  int width = 0, height = 0, sampling = 0, colours = 0;
  if (tjDecompressHeader3(turbo.get(), data, size, &width, &height, &sampling, &colours) != 0 &&
      !is_harmless(turbo))
    return broken(turbo);
  if (width < 0 || height < 0) return broken(turbo);
  WEFT_TRY(Photo photo,
           photo_of_size(static_cast<uint64_t>(width), static_cast<uint64_t>(height), pixels_max));
  const Markers markers = markers_of(bytes);
  photo.orientation = markers.orientation;
  const bool has_inks = colours == TJCS_CMYK || colours == TJCS_YCCK;
  std::vector<uint8_t> inks(has_inks ? photo.pixels.size() / 3 * 4 : 0);
  const int made = tjDecompress2(turbo.get(), data, size, has_inks ? inks.data() : photo.pixels.data(), width,
                                 0, height, has_inks ? TJPF_CMYK : TJPF_RGB, kExact);
  if (made != 0 && !is_harmless(turbo)) return broken(turbo);
  if (has_inks) mix_inks(inks, markers.is_adobe, photo.pixels);
  return photo;
}

}  // namespace weft::data
