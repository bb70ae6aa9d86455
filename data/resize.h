// Photos made as large as a model takes them: turned upright, the shorter edge brought to a length, the
// middle cut out. As torchvision's Resize and CenterCrop do it (bilinear, with antialiasing), in whole
// numbers throughout, so that every machine makes the same bytes.
#pragma once

#include <cstdint>
#include <span>

#include "data/photo.h"

namespace weft::data {

// A square of `edge` pixels, each channel by itself: red, then green, then blue. Its shorter edge became
// `resize` before. REQUIRES: 1 <= edge <= resize, out.size() == 3 * edge * edge; the photo has its pixels.
void resize_photo(const Photo& photo, uint32_t resize, uint32_t edge, std::span<uint8_t> out);

}  // namespace weft::data
