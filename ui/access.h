// Who may use the page. Three questions, each asked of every request that it concerns: is the page called by
// a name of its own (Host: else another site's name, pointed at this machine, would reach it); does what
// changes something come from the page itself (Origin); and, where a key is asked for, is there a cookie that
// was given for it. Values and rules alone: time, and what is drawn at random, are handed in.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "web/message.h"

namespace weft::ui {

inline constexpr Duration kSessionLength = std::chrono::hours(12);
inline constexpr size_t kSessionsMax = 64;  // a newer one displaces the oldest
inline constexpr size_t kWrongKeysMax = 10;
inline constexpr Duration kWrongKeysWithin = std::chrono::minutes(1);
inline constexpr Duration kClosedFor = std::chrono::minutes(1);
inline constexpr size_t kAddressesMax = 1024;  // of which wrong keys are counted

// What Host may say. Without a port: any.
struct HostName {
  std::string name;  // in lower case; an IPv6 address in brackets
  std::optional<uint16_t> port{};
};
// "ui.example.org", "192.0.2.1:7780", "[::1]:7780". InvalidArgument: none of these.
Result<HostName> parse_host(std::string_view text);

struct AccessOptions {
  std::vector<HostName> hosts{};
  std::string key{};  // that a session is opened with; empty: everybody who reaches the page may use it
  std::string cookie = "weft_ui";  // its name: a browser gives all ports of a host the same cookies
};

// Why a request gets no answer of ours.
struct Refused {
  int status = 403;
  std::string message{};
  uint32_t retry_after = 0;  // seconds; 0: not said
};

// Where wrong keys come from: an IPv4 address, or an IPv6 /64, of "192.0.2.1:4711".
std::string address_of(std::string_view remote);

class Access {
 public:
  explicit Access(AccessOptions options) : options_(std::move(options)) {}

  bool needs_key() const { return !options_.key.empty(); }
  // Of any request, before anything else. Nothing: go on.
  std::optional<Refused> check_source(const web::Request& request) const;
  std::optional<Refused> check_session(const web::Request& request, Instant now);

  // The value of Set-Cookie. `fresh`: what the session will be known by, drawn at random.
  tl::expected<std::string, Refused> open_session(std::string_view key, std::string_view remote,
                                                  const std::string& fresh, Instant now);

 private:
  struct Session {
    std::string id;
    Instant until;
  };
  struct Tries {
    std::deque<Instant> wrong;  // within kWrongKeysWithin
    Instant closed_until{};
    Instant last{};
  };
  bool is_own_host(std::string_view host) const;
  Tries& tries_of(const std::string& address);

  const AccessOptions options_;
  std::deque<Session> sessions_;
  std::map<std::string, Tries> tries_;
};

}  // namespace weft::ui
