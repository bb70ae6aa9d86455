#include "tests/support/photos.h"

#include <spng.h>
#include <turbojpeg.h>
#include <webp/encode.h>
#include <zlib.h>

#include <cmath>
#include <cstdlib>
#include <initializer_list>

#include "base/check.h"

namespace weft::test {
namespace {

uint8_t clamp(double value) { return static_cast<uint8_t>(std::lround(std::fmin(255, std::fmax(0, value)))); }

std::string big(uint32_t value) {
  std::string text;
  for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value >> shift);
  return text;
}

std::string chunk(const std::string& kind, const std::string& body) {
  const std::string both = kind + body;
  const uLong crc = crc32(0, reinterpret_cast<const Bytef*>(both.data()), static_cast<uInt>(both.size()));
  return big(static_cast<uint32_t>(body.size())) + both + big(static_cast<uint32_t>(crc));
}

// The header of TIFF in `order` ("II" or "MM") with one entry.
std::string tiff(int orientation) {
  return std::string("MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0", 19) + static_cast<char>(orientation) +
         std::string("\0\0\0\0\0\0", 6);
}

std::string encode_png(const Picture& picture, spng_ihdr header, const void* pixels, size_t size,
                       const spng_plte* palette = nullptr, const spng_trns* alpha = nullptr) {
  spng_ctx* context = spng_ctx_new(SPNG_CTX_ENCODER);
  spng_set_option(context, SPNG_ENCODE_TO_BUFFER, 1);
  header.width = picture.width;
  header.height = picture.height;
  spng_set_ihdr(context, &header);
  if (palette != nullptr) {
    spng_plte copy = *palette;
    spng_set_plte(context, &copy);
  }
  if (alpha != nullptr) {
    spng_trns copy = *alpha;
    spng_set_trns(context, &copy);
  }
  const int code = spng_encode_image(context, pixels, size, SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE);
  WEFT_CHECK_MSG(code == 0, spng_strerror(code));
  size_t length = 0;
  int problem = 0;
  void* bytes = spng_get_png_buffer(context, &length, &problem);
  std::string text(static_cast<const char*>(bytes), length);
  std::free(bytes);
  spng_ctx_free(context);
  return text;
}

spng_ihdr header_of(uint8_t depth, uint8_t colours) {
  spng_ihdr header{};
  header.bit_depth = depth;
  header.color_type = colours;
  return header;
}

// The red of each pixel, and alpha that is often nothing.
std::vector<uint8_t> channels(const Picture& picture, std::initializer_list<int> which) {
  std::vector<uint8_t> out;
  for (size_t i = 0; i < picture.pixels.size() / 3; ++i)
    for (const int channel : which)
      out.push_back(channel < 3 ? picture.pixels[i * 3 + static_cast<size_t>(channel)]
                                : static_cast<uint8_t>(i * 37));
  return out;
}

std::vector<uint16_t> deep(const std::vector<uint8_t>& narrow) {
  std::vector<uint16_t> out;
  for (size_t i = 0; i < narrow.size(); ++i) out.push_back(static_cast<uint16_t>(narrow[i] * 257));
  return out;
}

std::string palette_png(const Picture& picture, bool has_alpha) {
  spng_plte palette{};
  palette.n_entries = 256;
  for (size_t i = 0; i < 256; ++i) {
    const auto at = static_cast<uint8_t>(i);
    palette.entries[i] = {at, static_cast<uint8_t>(255 - at), static_cast<uint8_t>(at / 2), 255};
  }
  spng_trns alpha{};
  alpha.n_type3_entries = 256;
  for (size_t i = 0; i < 256; ++i) alpha.type3_alpha[i] = static_cast<uint8_t>(i);
  const auto indices = channels(picture, {0});
  return encode_png(picture, header_of(8, SPNG_COLOR_TYPE_INDEXED), indices.data(), indices.size(), &palette,
                    has_alpha ? &alpha : nullptr);
}

std::string one_bit_png(const Picture& picture) {
  const size_t row = (picture.width + 7) / 8;
  std::vector<uint8_t> bits(row * picture.height);
  for (uint32_t y = 0; y < picture.height; ++y)
    for (uint32_t x = 0; x < picture.width; ++x)
      if (picture.pixels[(size_t{y} * picture.width + x) * 3] >= 128)
        bits[y * row + x / 8] = static_cast<uint8_t>(bits[y * row + x / 8] | 0x80 >> x % 8);
  return encode_png(picture, header_of(1, SPNG_COLOR_TYPE_GRAYSCALE), bits.data(), bits.size());
}

}  // namespace

Picture picture(uint32_t width, uint32_t height, uint32_t seed) {
  Picture made{width, height, {}};
  for (uint32_t y = 0; y < height; ++y)
    for (uint32_t x = 0; x < width; ++x) {
      const double across = (x + 0.5) / width, down = (y + 0.5) / height;
      made.pixels.push_back(clamp(255 * across));
      made.pixels.push_back(clamp(255 * down * (0.5 + 0.5 * across)));
      made.pixels.push_back(clamp(128 + 100 * std::sin(seed + 5 * across + 3 * down)));
    }
  return made;
}

Picture stored_as(const Picture& upright, int orientation) {
  const bool turned = orientation >= 5;
  Picture stored{turned ? upright.height : upright.width, turned ? upright.width : upright.height, {}};
  for (uint32_t y = 0; y < stored.height; ++y)
    for (uint32_t x = 0; x < stored.width; ++x) {
      // Where EXIF's first row and first column are, in words of the standard: "right top" is 6.
      const uint32_t left = turned ? y : x, top = turned ? x : y;
      const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 6;
      const bool from_bottom = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
      const uint32_t at_x = from_right ? upright.width - 1 - left : left;
      const uint32_t at_y = from_bottom ? upright.height - 1 - top : top;
      for (size_t c = 0; c < 3; ++c)
        stored.pixels.push_back(upright.pixels[(size_t{at_y} * upright.width + at_x) * 3 + c]);
    }
  return stored;
}

std::string png(const Picture& picture) {
  return encode_png(picture, header_of(8, SPNG_COLOR_TYPE_TRUECOLOR), picture.pixels.data(),
                    picture.pixels.size());
}

std::string png(const Picture& picture, PngKind kind) {
  const auto narrow = [&](uint8_t colours, std::initializer_list<int> which) {
    const auto bytes = channels(picture, which);
    return encode_png(picture, header_of(8, colours), bytes.data(), bytes.size());
  };
  const auto wide = [&](uint8_t colours, std::initializer_list<int> which) {
    const auto words = deep(channels(picture, which));
    return encode_png(picture, header_of(16, colours), words.data(), words.size() * 2);
  };
  switch (kind) {
    case PngKind::Grey:
      return narrow(SPNG_COLOR_TYPE_GRAYSCALE, {0});
    case PngKind::GreyAlpha:
      return narrow(SPNG_COLOR_TYPE_GRAYSCALE_ALPHA, {0, 3});
    case PngKind::Alpha:
      return narrow(SPNG_COLOR_TYPE_TRUECOLOR_ALPHA, {0, 1, 2, 3});
    case PngKind::Palette:
      return palette_png(picture, false);
    case PngKind::PaletteAlpha:
      return palette_png(picture, true);
    case PngKind::Deep:
      return wide(SPNG_COLOR_TYPE_TRUECOLOR, {0, 1, 2});
    case PngKind::DeepGrey:
      return wide(SPNG_COLOR_TYPE_GRAYSCALE, {0});
    case PngKind::OneBit:
      return one_bit_png(picture);
    case PngKind::Interlaced:
      break;
  }
  spng_ihdr header = header_of(8, SPNG_COLOR_TYPE_TRUECOLOR);
  header.interlace_method = 1;
  return encode_png(picture, header, picture.pixels.data(), picture.pixels.size());
}

std::string jpeg(const Picture& picture, JpegKind kind) {
  tjhandle turbo = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  std::vector<uint8_t> pixels = picture.pixels;
  int format = TJPF_RGB, sampling = TJSAMP_444;
  if (kind == JpegKind::Grey) sampling = TJSAMP_GRAY;
  if (kind == JpegKind::Cmyk) {  // as Adobe's programs: 255 is no ink
    format = TJPF_CMYK;
    pixels.clear();
    for (size_t i = 0; i < picture.pixels.size() / 3; ++i) {
      for (size_t c = 0; c < 3; ++c) pixels.push_back(picture.pixels[i * 3 + c]);
      pixels.push_back(255);
    }
  }
  const int flags = TJFLAG_ACCURATEDCT | (kind == JpegKind::Progressive ? TJFLAG_PROGRESSIVE : 0);
  const int code = tjCompress2(turbo, pixels.data(), static_cast<int>(picture.width), 0,
                               static_cast<int>(picture.height), format, &bytes, &size, sampling, 95, flags);
  WEFT_CHECK_MSG(code == 0, tjGetErrorStr2(turbo));
  std::string text(reinterpret_cast<char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(turbo);
  return text;
}

namespace {

std::string taken(uint8_t* bytes, size_t size) {
  WEFT_CHECK(size > 0);
  std::string text(reinterpret_cast<char*>(bytes), size);
  WebPFree(bytes);
  return text;
}

}  // namespace

std::string webp(const Picture& picture) {
  uint8_t* bytes = nullptr;
  const int width = static_cast<int>(picture.width), height = static_cast<int>(picture.height);
  const size_t size = WebPEncodeLosslessRGB(picture.pixels.data(), width, height, width * 3, &bytes);
  return taken(bytes, size);
}

std::string lossy_webp(const Picture& picture) {
  uint8_t* bytes = nullptr;
  const int width = static_cast<int>(picture.width), height = static_cast<int>(picture.height);
  const size_t size = WebPEncodeRGB(picture.pixels.data(), width, height, width * 3, 95, &bytes);
  return taken(bytes, size);
}

std::string alpha_webp(const Picture& picture) {
  uint8_t* bytes = nullptr;
  const int width = static_cast<int>(picture.width), height = static_cast<int>(picture.height);
  const auto pixels = channels(picture, {0, 1, 2, 3});
  const size_t size = WebPEncodeRGBA(pixels.data(), width, height, width * 4, 95, &bytes);
  return taken(bytes, size);
}

std::string jpeg_with_exif(const std::string& jpeg, int orientation) {
  const std::string body = std::string("Exif\0\0", 6) + tiff(orientation);
  const size_t size = body.size() + 2;
  return jpeg.substr(0, 2) + "\xFF\xE1" + static_cast<char>(size >> 8) + static_cast<char>(size & 0xFF) +
         body + jpeg.substr(2);
}

std::string png_with_exif(const std::string& png, int orientation) {
  return png.substr(0, 33) + chunk("eXIf", tiff(orientation)) + png.substr(33);
}

std::string animated_png(const std::string& png) {
  return png.substr(0, 33) + chunk("acTL", big(2) + big(0)) + png.substr(33);
}

std::string animated_webp() {
  const std::string extended = std::string("VP8X\x0A\0\0\0\x02\0\0\0\x07\0\0\x07\0\0", 18);
  const std::string animation = std::string("ANIM\x06\0\0\0\0\0\0\0\0\0", 14);
  const std::string body = "WEBP" + extended + animation;
  return "RIFF" + std::string{static_cast<char>(body.size()), 0, 0, 0} + body;
}

std::string png_bomb(uint32_t width, uint32_t height) {
  return "\x89PNG\r\n\x1A\n" + chunk("IHDR", big(width) + big(height) + std::string("\x08\x02\0\0\0", 5)) +
         chunk("IDAT", std::string("\x78\x9c\x03\0\0\0\0\x01", 8)) + chunk("IEND", "");
}

}  // namespace weft::test
