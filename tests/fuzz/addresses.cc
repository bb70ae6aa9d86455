#include "base/check.h"
#include "net/relay.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

void addresses(std::span<const std::byte> bytes) {
  if (const auto endpoint = net::parse_endpoint(as_text(bytes))) {
    const auto again = net::parse_endpoint(net::to_string(*endpoint));
    WEFT_CHECK(again.has_value() && *again == *endpoint);
  }
  if (const auto preamble = net::parse_relay_preamble(bytes)) {
    const auto again = net::parse_relay_preamble(net::relay_preamble(*preamble));
    WEFT_CHECK(again.has_value() && *again == *preamble);
  }
}

}  // namespace weft::fuzz
