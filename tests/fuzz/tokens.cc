#include "base/check.h"
#include "security/token.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

void tokens(std::span<const std::byte> bytes) {
  const auto token = security::parse_token(as_text(bytes));
  if (!token) return;
  const auto again = security::parse_token(security::to_text(*token));
  WEFT_CHECK(again.has_value() && *again == *token);
}

}  // namespace weft::fuzz
