// The way from here to a broker, step by step: name, addresses, TLS, key, token, clock, relay, reach, rates.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "cli/client.h"
#include "cli/doctor/check.h"
#include "net/endpoint.h"
#include "net/examine.h"
#include "net/loop.h"
#include "proto/hello.h"
#include "security/identity.h"
#include "security/token.h"

namespace weft::cli {

// ---- what was seen to what is said of it

Check check_name(const net::Endpoint& broker, const Result<std::vector<net::Endpoint>>& addresses);

struct DialledAddress {
  net::Endpoint address;
  Result<Duration> connected;  // how long it took
};
// A line for each address. One that does not answer stops work only where no other does.
Checks check_dials(const std::vector<DialledAddress>& dialled);
// By what answers. `expected`: the key that the token names; nothing: there is no token.
Checks check_answerer(const Result<net::Answerer>& answerer, const std::optional<PeerId>& expected);
Check check_token(security::Role role, const Result<proto::HelloAck>& greeted);
Check check_version(const proto::HelloAck& broker, std::string_view own_software);
// The question went at `asked` and the answer came at `answered`, by this machine's clock.
Check check_clock(int64_t broker_unix_ms, int64_t asked_unix_ms, int64_t answered_unix_ms);
// Whether others can dial this machine: the broker sees it at `seen`, it is itself at `local`, both
// "host:port".
Check check_reach(const std::string& seen, const std::string& local,
                  const std::function<bool(const std::string& host)>& is_own);
// By what a ticket that nobody has granted was answered.
Check check_relay(const Error& refused);
// `what`: uplink or downlink. Bytes a second.
Check check_rate(const std::string& what, const Result<double>& rate);

// ---- looking

struct WayOptions {
  net::Endpoint broker;
  std::optional<security::Token> token;
  const security::Identity* identity = nullptr;  // must outlive the call
  Duration deadline = std::chrono::seconds(4);   // of each step, and of each address
  std::function<int64_t()> unix_ms{};            // this machine's clock
  std::string software{};
  bool measures = true;  // the rates
};
// Tells `say` of each check as it is done. What follows a step that stops is left out. The connection, where
// there is one.
std::unique_ptr<Client> look_at_way(net::Loop& loop, const WayOptions& options,
                                    const std::function<void(Check)>& say);

}  // namespace weft::cli
