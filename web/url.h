// Where a service is, as people write it. Pure.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "net/endpoint.h"

namespace weft::web {

struct Url {
  bool is_secure = false;  // https
  net::Endpoint endpoint{};
  std::string path{};  // begins with '/', and has no '/' at its end; empty: the root
  bool operator==(const Url&) const = default;
};

// "http://127.0.0.1:7781/v1", "https://example.org/v1", "http://[::1]:80". Without a port: 80, or 443.
// InvalidArgument names what is wrong: another scheme, a user's name or password, a query, characters that do
// not belong into a URL, more than 2048 bytes.
Result<Url> parse_url(std::string_view text);
std::string to_string(const Url& url);
// As a request's Host has it: the port is left out where it is the scheme's own.
std::string host_of(const Url& url);

}  // namespace weft::web
