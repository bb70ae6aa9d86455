#include "base/check.h"
#include "storage/manifest.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

void manifests(std::span<const std::byte> bytes) {
  const auto manifest = storage::parse_manifest(as_text(bytes));
  if (!manifest) return;
  const auto again = storage::parse_manifest(storage::manifest_json(*manifest));
  WEFT_CHECK(again.has_value() && *again == *manifest);
}

}  // namespace weft::fuzz
