// Photos for tests, written by the libraries themselves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::test {

// Red, green and blue, row by row; smooth enough for a JPEG, and different at every corner.
struct Picture {
  uint32_t width = 0, height = 0;
  std::vector<uint8_t> pixels;
};
Picture picture(uint32_t width, uint32_t height, uint32_t seed = 1);
// Turned and mirrored so that a viewer who obeys the EXIF orientation (1 to 8) sees `upright`.
Picture stored_as(const Picture& upright, int orientation);

std::string png(const Picture& picture);
enum class PngKind { Grey, GreyAlpha, Alpha, Palette, PaletteAlpha, Deep, DeepGrey, OneBit, Interlaced };
std::string png(const Picture& picture, PngKind kind);
enum class JpegKind { Plain, Grey, Progressive, Cmyk };
std::string jpeg(const Picture& picture, JpegKind kind = JpegKind::Plain);
std::string webp(const Picture& picture);  // lossless
std::string lossy_webp(const Picture& picture);
std::string alpha_webp(const Picture& picture);

// The same file with what EXIF says of its orientation.
std::string jpeg_with_exif(const std::string& jpeg, int orientation);
std::string png_with_exif(const std::string& png, int orientation);
// What says that more pictures follow.
std::string animated_png(const std::string& png);
std::string animated_webp();
// A header that promises so many pixels, and little else.
std::string png_bomb(uint32_t width, uint32_t height);

}  // namespace weft::test
