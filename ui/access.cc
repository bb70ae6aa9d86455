#include "ui/access.h"

#include <arpa/inet.h>

#include <algorithm>

#include "net/endpoint.h"

namespace weft::ui {

namespace {

Refused refused(std::string message) { return {.message = std::move(message)}; }

// Takes as long for what is nearly right as for what is not.
bool is_equal(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned differ = 0;
  for (size_t i = 0; i < a.size(); ++i)
    differ |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return differ == 0;
}

// The host behind "http://" or "https://", which a proxy before the page may speak; empty: another scheme.
std::string_view host_of_origin(std::string_view origin) {
  for (const std::string_view scheme : {"http://", "https://"})
    if (origin.starts_with(scheme)) return origin.substr(scheme.size());
  return {};
}

std::string_view cookie_of(const web::Request& request, const std::string& name) {
  std::string_view rest = request.header("cookie").value_or("");
  const std::string wanted = name + "=";
  while (!rest.empty()) {
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    const std::string_view pair = rest.substr(0, rest.find(';'));
    if (pair.starts_with(wanted)) return pair.substr(wanted.size());
    rest.remove_prefix(std::min(pair.size() + 1, rest.size()));
  }
  return {};
}

}  // namespace

Result<HostName> parse_host(std::string_view text) {
  const bool has_port = text.find(':', text.starts_with('[') ? text.find(']') : 0) != std::string_view::npos;
  WEFT_TRY(const net::Endpoint endpoint, net::parse_endpoint(std::string(text) + (has_port ? "" : ":80")));
  const bool is_address = endpoint.host.find(':') != std::string::npos;
  HostName host{.name = web::lower_case(is_address ? "[" + endpoint.host + "]" : endpoint.host)};
  if (has_port) host.port = endpoint.port;
  return host;
}

std::string address_of(std::string_view remote) {
  const auto endpoint = net::parse_endpoint(remote);
  if (!endpoint) return std::string(remote);
  in6_addr address{};
  if (::inet_pton(AF_INET6, endpoint->host.c_str(), &address) != 1) return endpoint->host;
  if (IN6_IS_ADDR_V4MAPPED(&address)) return endpoint->host;
  std::fill(std::begin(address.s6_addr) + 8, std::end(address.s6_addr), uint8_t{0});
  char text[INET6_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET6, &address, text, sizeof text);
  return text;
}

bool Access::is_own_host(std::string_view host) const {
  const auto named = parse_host(host);
  if (!named) return false;
  return std::ranges::any_of(options_.hosts, [&](const HostName& own) {
    return own.name == named->name && (!own.port || *own.port == named->port.value_or(80));
  });
}

std::optional<Refused> Access::check_source(const web::Request& request) const {
  const std::string_view host = request.header("host").value_or("");
  if (!is_own_host(host))
    return refused("this is no name of this page: use the address that weft ui prints, or --host NAME");
  const auto origin = request.header("origin");
  const bool changes = request.method != "GET" && request.method != "HEAD";
  if (changes && !origin) return refused("what changes something comes from the page itself: no Origin");
  if (origin && web::lower_case(host_of_origin(*origin)) != web::lower_case(host))
    return refused("what changes something comes from the page itself: another Origin");
  const std::string_view site = request.header("sec-fetch-site").value_or("none");
  const bool is_visit = request.header("sec-fetch-mode").value_or("") == "navigate";
  if (site != "same-origin" && site != "none" && (changes || !is_visit))
    return refused("another site's page may not ask this one");
  return std::nullopt;
}

std::optional<Refused> Access::check_session(const web::Request& request, Instant now) {
  if (!needs_key()) return std::nullopt;
  std::erase_if(sessions_, [&](const Session& session) { return session.until <= now; });
  const std::string_view cookie = cookie_of(request, options_.cookie);
  bool is_known = false;
  for (const Session& session : sessions_) is_known = is_equal(cookie, session.id) || is_known;
  if (is_known) return std::nullopt;
  return refused("open the whole address that weft ui printed, with the key behind '#'");
}

Access::Tries& Access::tries_of(const std::string& address) {
  if (!tries_.contains(address) && tries_.size() >= kAddressesMax)
    tries_.erase(std::ranges::min_element(tries_, {}, [](const auto& entry) { return entry.second.last; }));
  return tries_[address];
}

tl::expected<std::string, Refused> Access::open_session(std::string_view key, std::string_view remote,
                                                        const std::string& fresh, Instant now) {
  Tries& tries = tries_of(address_of(remote));
  tries.last = now;
  if (now < tries.closed_until) {
    const auto left = std::chrono::ceil<std::chrono::seconds>(tries.closed_until - now);
    return tl::unexpected(Refused{.status = 429,
                                  .message = "too many wrong keys: try again in a minute",
                                  .retry_after = static_cast<uint32_t>(left.count())});
  }
  if (!needs_key() || !is_equal(key, options_.key)) {
    tries.wrong.push_back(now);
    while (tries.wrong.front() + kWrongKeysWithin <= now) tries.wrong.pop_front();
    if (tries.wrong.size() >= kWrongKeysMax) {
      tries.closed_until = now + kClosedFor;
      tries.wrong.clear();
    }
    return tl::unexpected(refused("this is not the key"));
  }
  if (sessions_.size() >= kSessionsMax) sessions_.pop_front();
  sessions_.push_back({fresh, now + kSessionLength});
  return options_.cookie + "=" + fresh + "; Path=/; HttpOnly; SameSite=Strict; Max-Age=" +
         std::to_string(std::chrono::duration_cast<std::chrono::seconds>(kSessionLength).count());
}

}  // namespace weft::ui
