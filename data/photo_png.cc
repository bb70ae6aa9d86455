#include <spng.h>

#include <cstring>
#include <memory>

#include "data/photo.h"

namespace weft::data {
namespace {

constexpr size_t kChunkMax = size_t{8} << 20;    // bytes of one that holds no pixels
constexpr size_t kChunksMax = size_t{32} << 20;  // of all that are kept

struct EndSpng {
  void operator()(spng_ctx* context) const { spng_ctx_free(context); }
};
using Spng = std::unique_ptr<spng_ctx, EndSpng>;

tl::unexpected<Error> broken(int code) {
  return fail(code == SPNG_EMEM ? ErrorCode::ResourceExhausted : ErrorCode::Corrupted,
              std::string("is a damaged PNG: ") + spng_strerror(code));
}

// A moving picture says so in a chunk before its pixels.
bool is_animated(std::span<const std::byte> bytes) {
  for (size_t at = 8; at + 8 <= bytes.size();) {
    size_t size = 0;
    for (size_t i = 0; i < 4; ++i) size = size << 8 | static_cast<size_t>(bytes[at + i]);
    const char* kind = reinterpret_cast<const char*>(bytes.data() + at + 4);
    if (std::memcmp(kind, "acTL", 4) == 0) return true;
    if (std::memcmp(kind, "IDAT", 4) == 0 || size > bytes.size()) return false;
    at += 12 + size;
  }
  return false;
}

uint8_t rounded(uint16_t value) { return static_cast<uint8_t>((uint32_t{value} * 255 + 32767) / 65535); }

// Sixteen bits a channel, with alpha; of this machine's order.
Status decode_deep(spng_ctx* context, Photo& photo) {
  std::vector<uint16_t> deep(photo.pixels.size() / 3 * 4);
  if (const int code = spng_decode_image(context, deep.data(), deep.size() * 2, SPNG_FMT_RGBA16, 0);
      code != 0)
    return broken(code);
  for (size_t i = 0; i < photo.pixels.size() / 3; ++i)
    for (size_t c = 0; c < 3; ++c) photo.pixels[i * 3 + c] = rounded(deep[i * 4 + c]);
  return {};
}

}  // namespace

Result<Photo> decode_png(std::span<const std::byte> bytes, uint64_t pixels_max) {
  if (is_animated(bytes))
    return fail(ErrorCode::Unsupported, "is animated; write its first picture: convert 'FILE[0]' FILE");
  const Spng context(spng_ctx_new(0));
  if (!context) return fail(ErrorCode::ResourceExhausted, "no memory to decode it");
  spng_set_chunk_limits(context.get(), kChunkMax, kChunksMax);
  spng_set_crc_action(context.get(), SPNG_CRC_ERROR, SPNG_CRC_ERROR);
  if (const int code = spng_set_png_buffer(context.get(), bytes.data(), bytes.size()); code != 0)
    return broken(code);
  spng_ihdr header{};
  if (const int code = spng_get_ihdr(context.get(), &header); code != 0) return broken(code);
  WEFT_TRY(Photo photo, photo_of_size(header.width, header.height, pixels_max));
  if (header.bit_depth == 16) {
    WEFT_TRY_STATUS(decode_deep(context.get(), photo));
  } else if (const int code =
                 spng_decode_image(context.get(), photo.pixels.data(), photo.pixels.size(), SPNG_FMT_RGB8, 0);
             code != 0) {
    return broken(code);
  }
  spng_exif exif{};
  if (spng_get_exif(context.get(), &exif) == 0)
    photo.orientation = exif_orientation(std::as_bytes(std::span(exif.data, exif.length)));
  return photo;
}

}  // namespace weft::data
