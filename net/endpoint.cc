#include "net/endpoint.h"

#include <algorithm>
#include <charconv>

namespace weft::net {

namespace {

// What people typed goes into the message, but not all of it and nothing that a terminal would obey.
std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, 80)) out += c >= ' ' && c < 127 ? c : '?';
  return out + (text.size() > 80 ? "...'" : "'");
}

bool is_host_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
         c == '_';
}

bool is_address_character(char c) {
  return (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') || (c >= '0' && c <= '9') || c == ':' || c == '.';
}

// The scope of a link-local address, as in fe80::1%eth0.
bool is_address(std::string_view text) {
  const std::string_view address = text.substr(0, text.find('%'));
  const std::string_view scope = text.substr(std::min(text.size(), address.size() + 1));
  return address.find(':') != std::string_view::npos &&
         std::all_of(address.begin(), address.end(), is_address_character) &&
         std::all_of(scope.begin(), scope.end(), is_host_character) &&
         (address.size() == text.size() || !scope.empty());
}

}  // namespace

Result<Endpoint> parse_endpoint(std::string_view text) {
  const auto invalid = [&](std::string_view why) {
    return fail(ErrorCode::InvalidArgument,
                "address " + quoted(text) + ": " + std::string(why) +
                    "; write HOST:PORT, as in example.org:7000 or [2001:db8::1]:7000");
  };
  std::string_view host, port;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return invalid("the bracket is not closed");
    host = text.substr(1, end - 1);
    if (!is_address(host)) return invalid("between the brackets is no IPv6 address");
    if (end + 1 >= text.size() || text[end + 1] != ':') return invalid("it has no port");
    port = text.substr(end + 2);
  } else {
    const size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) return invalid("it has no port");
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (host.find(':') != std::string_view::npos) return invalid("an IPv6 address stands in brackets");
    if (host.empty()) return invalid("it has no host");
    if (!std::all_of(host.begin(), host.end(), is_host_character))
      return invalid("the host holds a character that no name has");
  }
  if (host.size() > 255) return invalid("the host has more than 255 characters");
  uint16_t number = 0;
  const auto [rest, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (port.empty() || error != std::errc() || rest != port.data() + port.size() || port.size() > 5)
    return invalid("the port is no number from 0 to 65535");
  return Endpoint{std::string(host), number};
}

std::string to_string(const Endpoint& endpoint) {
  const bool is_six = endpoint.host.find(':') != std::string::npos;
  return (is_six ? "[" + endpoint.host + "]" : endpoint.host) + ":" + std::to_string(endpoint.port);
}

}  // namespace weft::net
