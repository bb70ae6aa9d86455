// Where something listens: "host:port", "192.0.2.1:7000", "[2001:db8::1]:7000".
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weft::net {

struct Endpoint {
  std::string host;  // a name or an address, without brackets
  uint16_t port = 0;
  auto operator<=>(const Endpoint&) const = default;
};
// InvalidArgument names what is wrong. Port 0 is allowed (the system chooses); names of at most 255
// characters.
Result<Endpoint> parse_endpoint(std::string_view text);
std::string to_string(const Endpoint& endpoint);

}  // namespace weft::net
