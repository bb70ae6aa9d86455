#include "data/photo.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "data/resize.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

void photos(std::span<const std::byte> bytes) {
  const auto photo = data::decode_photo(bytes, uint64_t{1} << 20);
  (void)data::exif_orientation(bytes);
  if (!photo) return;
  WEFT_CHECK(photo->width > 0 && photo->height > 0);
  WEFT_CHECK(photo->pixels.size() == size_t{3} * photo->width * photo->height);
  WEFT_CHECK(photo->orientation >= data::Orientation::Upright &&
             photo->orientation <= data::Orientation::TurnedRight);
  const auto [shorter, longer] = std::minmax(photo->width, photo->height);
  if (longer / shorter > 1024) return;
  std::vector<uint8_t> square(3 * 24 * 24);
  data::resize_photo(*photo, 28, 24, square);
}

}  // namespace weft::fuzz
