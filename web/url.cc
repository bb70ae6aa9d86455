#include "web/url.h"

#include <algorithm>

#include "base/printable.h"
#include "web/message.h"

namespace weft::web {

namespace {

constexpr size_t kUrlMax = 2048;

tl::unexpected<Error> wrong(std::string_view text, const std::string& what) {
  return fail(ErrorCode::InvalidArgument, "'" + printable(text.substr(0, 128)) +
                                              "' is no URL of a service: " + what +
                                              " (such as http://127.0.0.1:7781/v1)");
}

uint16_t port_of(bool is_secure) { return is_secure ? 443 : 80; }

// What may stand in a URL as it is (RFC 3986), so that nothing can end a line of a request.
bool is_plain(char c) {
  return c > ' ' && c < '\x7f' && std::string_view("\"<>\\^`{|}").find(c) == std::string_view::npos;
}

bool has_port(std::string_view authority) {
  return authority.find(':', authority.starts_with('[') ? std::min(authority.find(']'), authority.size())
                                                        : 0) != authority.npos;
}

}  // namespace

Result<Url> parse_url(std::string_view text) {
  if (text.size() > kUrlMax) return wrong(text, "it is longer than " + std::to_string(kUrlMax) + " bytes");
  if (!std::ranges::all_of(text, is_plain)) return wrong(text, "it holds a character that no URL has");
  const size_t colon = text.find("://");
  if (colon == text.npos) return wrong(text, "it begins with http:// or https://");
  Url url;
  url.is_secure = lower_case(text.substr(0, colon)) == "https";
  if (!url.is_secure && lower_case(text.substr(0, colon)) != "http")
    return wrong(text, "it begins with http:// or https://");
  const std::string_view rest = text.substr(colon + 3);
  if (rest.find_first_of("?#") != rest.npos) return wrong(text, "it has a query");
  const std::string_view authority = rest.substr(0, rest.find('/'));
  if (authority.find('@') != authority.npos)
    return wrong(text, "give a key in a file, and not within the URL");
  const std::string with_port =
      std::string(authority) + (has_port(authority) ? "" : ":" + std::to_string(port_of(url.is_secure)));
  auto endpoint = net::parse_endpoint(with_port);
  if (!endpoint) return wrong(text, endpoint.error().message);
  if (endpoint->port == 0) return wrong(text, "port 0 is no port");
  url.endpoint = std::move(*endpoint);
  url.path = rest.substr(authority.size());
  while (url.path.ends_with('/')) url.path.pop_back();
  return url;
}

std::string host_of(const Url& url) {
  std::string whole = net::to_string(url.endpoint);
  if (url.endpoint.port != port_of(url.is_secure)) return whole;
  return whole.substr(0, whole.rfind(':'));
}

std::string to_string(const Url& url) {
  return (url.is_secure ? "https://" : "http://") + host_of(url) + url.path;
}

}  // namespace weft::web
