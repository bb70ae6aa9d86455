#include <algorithm>

#include "base/check.h"
#include "storage/packed.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

// The size of the blob, whether there is a base, and how the bytes come in pieces.
void packed(std::span<const std::byte> bytes) {
  Input input(bytes);
  const auto size = static_cast<size_t>(input.number(3)) % (3 * storage::kPackedUnit);
  const size_t piece_max = size_t{1} << input.byte() % 16;
  std::vector<std::byte> base(input.byte() % 2 == 1 ? size : 0);
  for (size_t i = 0; i < base.size(); ++i) base[i] = static_cast<std::byte>(i * 7 >> 3);

  storage::Unpacker unpacker(size, base);
  storage::PackedFraming framing(size);
  size_t given = 0;
  bool is_unpacked = true, is_framed = true;
  while (!input.empty() && (is_unpacked || is_framed)) {
    const auto piece = input.take(piece_max);
    is_framed = is_framed && framing.take(piece).has_value();
    is_unpacked = is_unpacked && unpacker
                                     .take(piece,
                                           [&](std::span<const std::byte> unit) {
                                             given += unit.size();
                                             return Status{};
                                           })
                                     .has_value();
    WEFT_CHECK(given <= size);
    WEFT_CHECK_MSG(!is_unpacked || is_framed, "units whose ends only the unpacker finds");
  }
  if (!is_unpacked) return;
  WEFT_CHECK(unpacker.is_complete() == framing.is_complete());
  WEFT_CHECK(!unpacker.is_complete() || given == size);
}

}  // namespace weft::fuzz
