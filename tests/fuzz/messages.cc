#include "base/check.h"
#include "proto/codec/codec.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

void messages(std::span<const std::byte> bytes) {
  const auto decoded = proto::decode(bytes);
  if (!decoded) return;
  const std::vector<std::byte> again = proto::encode(*decoded);
  const auto twice = proto::decode(again);
  WEFT_CHECK_MSG(twice.has_value(), "what was decoded cannot be sent on");
  WEFT_CHECK(proto::encode(*twice) == again);
}

}  // namespace weft::fuzz
