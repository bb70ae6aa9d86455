#include "data/npy.h"
#include "base/check.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

void npy(std::span<const std::byte> bytes) {
  const auto spec = data::parse_npy_dictionary(as_text(bytes));
  if (spec) WEFT_CHECK(spec->bytes().value >= 0);
}

}  // namespace weft::fuzz
