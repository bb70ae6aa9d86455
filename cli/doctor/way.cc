#include "cli/doctor/way.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/quantities.h"
#include "net/dial_policy.h"

namespace weft::cli {
namespace {

constexpr double kClockOffMax = 5;   // seconds, beyond what the question took
constexpr double kMbit = 1e6 / 8;    // bytes
constexpr double kSlowLine = kMbit;  // a second

std::string milliseconds(Duration duration) { return fmt::format("{:.0f} ms", seconds(duration) * 1e3); }
bool is_six(const net::Endpoint& address) { return address.host.find(':') != std::string::npos; }
const char* family_of(const net::Endpoint& address) { return is_six(address) ? "IPv6" : "IPv4"; }
// The part before the port of "host:port".
std::string host_of(const std::string& endpoint) {
  const auto parsed = net::parse_endpoint(endpoint);
  return parsed ? parsed->host : endpoint;
}
uint16_t port_of(const std::string& endpoint) {
  const auto parsed = net::parse_endpoint(endpoint);
  return parsed ? parsed->port : uint16_t{0};
}

std::string dial_advice(const DialledAddress& dialled) {
  const std::string where = net::to_string(dialled.address);
  switch (dialled.connected.error().code) {
    case ErrorCode::PermissionDenied:
      return "let this machine's firewall pass TCP to " + where;
    case ErrorCode::Timeout:
      return fmt::format(
          "ask whether a firewall, here or there, drops TCP to port {}; weft uses no HTTP proxy",
          dialled.address.port);
    default:
      return fmt::format("look whether the broker runs (weft broker) and listens at {}", where);
  }
}

Check check_dial(const DialledAddress& dialled, bool another_works) {
  Check check{"dial", CheckState::Ok,
              fmt::format("{} {}", family_of(dialled.address), net::to_string(dialled.address))};
  if (dialled.connected) {
    check.seen += " answers in " + milliseconds(*dialled.connected);
    return check;
  }
  check.seen += " does not answer: " + dialled.connected.error().message;
  check.state = another_works ? CheckState::Warning : CheckState::Stops;
  check.advice = dial_advice(dialled);
  if (another_works)
    check.advice = fmt::format(
        "{} works, but every connection may first wait for this one: mend {}, or give "
        "the broker by its address",
        is_six(dialled.address) ? "IPv4" : "another", family_of(dialled.address));
  return check;
}

std::string what_else(const net::Answerer& answerer) {
  switch (answerer.kind) {
    case net::Answerer::Kind::OtherTls:
      return "TLS, but with " + answerer.says + ": a proxy that reads TLS, or another server";
    case net::Answerer::Kind::Http:
      return "HTTP and no TLS (" + answerer.says + "): a captive portal or proxy, or another server";
    case net::Answerer::Kind::Other:
      return "no TLS: \"" + answerer.says + "\"";
    default:
      return "nothing: who is there hangs up or is silent";
  }
}

std::string answerer_advice(const net::Answerer& answerer) {
  if (answerer.kind == net::Answerer::Kind::Http || answerer.kind == net::Answerer::Kind::OtherTls)
    return "log in to this network in a browser, or have the network let TCP to the broker pass as it is; "
           "else "
           "look at the address and its port";
  return "look at the broker's address and its port";
}

// "port 4711 became 1025", or nothing where there is none to compare.
std::string port_text(const std::string& seen, const std::string& local) {
  const uint16_t there = port_of(seen), here = port_of(local);
  if (there == 0 || here == 0) return "";
  if (there == here) return ", which keeps ports";
  return fmt::format(", which changes ports ({} became {}), as a symmetric one does", here, there);
}

std::string rate_text(double rate) {
  return rate >= 100 * kMbit ? fmt::format("{:.0f} Mbit/s", rate / kMbit)
                             : fmt::format("{:.3g} Mbit/s", rate / kMbit);
}

}  // namespace

Check check_name(const net::Endpoint& broker, const Result<std::vector<net::Endpoint>>& addresses) {
  if (!addresses)
    return {"name", CheckState::Stops,
            fmt::format("{} cannot be looked up: {}", broker.host, addresses.error().message),
            addresses.error().code == ErrorCode::NotFound
                ? "look at how it is written, or give the broker by its address"
                : "look whether this machine is online and its name server answers (resolvectl status)"};
  if (addresses->empty())
    return {"name", CheckState::Stops, broker.host + " has no address", "give the broker by its address"};
  if (addresses->size() == 1 && addresses->front().host == broker.host)
    return {"name", CheckState::Ok, broker.host + " is an address"};
  std::vector<std::string> hosts;
  for (const net::Endpoint& address : *addresses) hosts.push_back(address.host);
  return {"name", CheckState::Ok, fmt::format("{} is {}", broker.host, fmt::join(hosts, ", "))};
}

Checks check_dials(const std::vector<DialledAddress>& dialled) {
  const bool any = std::any_of(dialled.begin(), dialled.end(),
                               [](const DialledAddress& each) { return each.connected.has_value(); });
  Checks checks;
  for (const DialledAddress& each : dialled) checks.push_back(check_dial(each, any));
  return checks;
}

Checks check_answerer(const Result<net::Answerer>& answerer, const std::optional<PeerId>& expected) {
  if (!answerer)
    return {{"tls", CheckState::Stops, "the connection is lost: " + answerer.error().message,
             "look whether something between here and there ends it"}};
  if (answerer->kind != net::Answerer::Kind::Weft)
    return {{"tls", CheckState::Stops, "what answers speaks " + what_else(*answerer),
             answerer_advice(*answerer)}};
  Checks checks{{"tls", CheckState::Ok, "TLS 1.3"}};
  const std::string key = to_string(answerer->key);
  if (!expected)
    checks.push_back({"key", CheckState::Warning, "it shows the key " + key,
                      "say --token: it names the key that the broker must show"});
  else if (*expected == answerer->key)
    checks.push_back({"key", CheckState::Ok, "it shows the key that the token names"});
  else
    checks.push_back(
        {"key", CheckState::Stops,
         fmt::format("it shows the key {} and not {}, which the token names", key, to_string(*expected)),
         "look at the address; else the broker was set up anew (ask its owner for a new token), or "
         "somebody poses as it"});
  return checks;
}

Check check_token(security::Role role, const Result<proto::HelloAck>& greeted) {
  const std::string whose(security::to_string(role));
  if (greeted) return {"token", CheckState::Ok, fmt::format("it lets a {} in", whose)};
  const std::string seen = "the broker does not let this in: " + greeted.error().message;
  switch (greeted.error().code) {
    case ErrorCode::PermissionDenied:
      return {"token", CheckState::Stops, seen,
              fmt::format("ask the broker's owner for a new one (weft token create --role {})", whose)};
    case ErrorCode::VersionMismatch:
      return {"token", CheckState::Stops, seen, "install the version that the broker has"};
    case ErrorCode::ResourceExhausted:
      return {"token", CheckState::Stops, seen, "try again later; fewer connections at once"};
    default:
      return {"token", CheckState::Stops, seen, "try again; else look into the broker's log"};
  }
}

Check check_version(const proto::HelloAck& broker, std::string_view own_software) {
  const std::string seen =
      fmt::format("the broker is weft {} (protocol {}.{}), this is weft {} ({}.{})", broker.software,
                  broker.major, broker.minor, own_software, proto::kProtocolMajor, proto::kProtocolMinor);
  if (broker.minor > proto::kProtocolMinor)
    return {"version", CheckState::Warning, seen,
            "install the newer one here: this machine is left out of what needs it"};
  return {"version", CheckState::Ok, seen};
}

Check check_clock(int64_t broker_unix_ms, int64_t asked_unix_ms, int64_t answered_unix_ms) {
  if (broker_unix_ms == 0)
    return {"clock", CheckState::Ok, "not compared: a broker of this version does not say what time it is"};
  // What the answer was in time for is no difference.
  const int64_t behind = broker_unix_ms - answered_unix_ms, ahead = asked_unix_ms - broker_unix_ms;
  const double off = static_cast<double>(std::max({behind, ahead, int64_t{0}})) / 1e3;
  if (off <= kClockOffMax) return {"clock", CheckState::Ok, "as the broker's"};
  return {
      "clock", CheckState::Warning,
      fmt::format("{} {} the broker's", format_duration(off), ahead > behind ? "ahead of" : "behind"),
      "set the one that is wrong (timedatectl set-ntp true): hours, expiry of tokens and times in logs go by "
      "it"};
}

Check check_reach(const std::string& seen, const std::string& local,
                  const std::function<bool(const std::string& host)>& is_own) {
  if (seen.empty())
    return {"reach", CheckState::Ok, "not known: a broker of this version does not say where it sees us"};
  const std::string host = host_of(seen);
  const auto address = net::parse_ip(host);
  if (address && net::kind_of(*address) == net::AddressKind::Loopback)
    return {"reach", CheckState::Ok, "the broker is on this machine"};
  if (is_own(host))
    return {
        "reach", CheckState::Ok,
        fmt::format("the broker sees {}, an address of this machine: with --listen {} others can dial it, "
                    "unless a firewall stops them (not tried)",
                    host, net::to_string({host, 7701}))};
  return {
      "reach", CheckState::Warning,
      fmt::format("others cannot dial this machine: it is {}, and the broker sees {}: a NAT is between{}; "
                  "tensors go to whom it can dial itself, else through the broker's relay",
                  host_of(local), host, port_text(seen, local)),
      fmt::format("for more speed have the router forward a port, and say --listen 0.0.0.0:7701 --advertise "
                  "{}",
                  net::to_string({host, 7701}))};
}

Check check_relay(const Error& refused) {
  // A ticket that nobody granted is hung up on at once.
  if (refused.code == ErrorCode::Unavailable && refused.message.find("relay hung up") != std::string::npos)
    return {"relay", CheckState::Ok, "the broker's relay answers"};
  return {"relay", CheckState::Warning, "the broker's relay does not answer: " + refused.message,
          "ask whether a firewall passes TLS alone; peers that nobody can dial need the relay"};
}

Check check_rate(const std::string& what, const Result<double>& rate) {
  if (!rate)
    return {what, CheckState::Warning, "not measured: " + rate.error().message,
            "try again, or look whether the broker's disk is full"};
  const std::string seen = rate_text(*rate) + " with the broker";
  if (*rate >= kSlowLine) return {what, CheckState::Ok, seen};
  return {what, CheckState::Warning, seen,
          "expect little of links this slow: use another line, or compression: auto"};
}

}  // namespace weft::cli
