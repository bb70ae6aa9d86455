#include "broker/admission.h"

#include <algorithm>
#include <string>
#include <utility>

namespace weft::broker {

using proto::Role;

namespace {

std::string_view reason_of(TokenVerdict verdict) {
  switch (verdict) {
    case TokenVerdict::None:
      return "this broker does not know your key, and no token came with it: ask the broker's owner for one "
             "(weft token create)";
    case TokenVerdict::Unknown:
      return "the broker has no such token, or its secret is another";
    case TokenVerdict::Expired:
      return "the token has expired: ask the broker's owner for another";
    case TokenVerdict::Used:
      return "the token has been used as often as it may be: ask the broker's owner for another";
    case TokenVerdict::Revoked:
      return "the token has been revoked: ask the broker's owner for another";
    case TokenVerdict::Valid:
      return "the token is for another role (weft token create --role peer|submitter|admin)";
  }
  return "";
}

std::string_view name_of(Role role) {
  switch (role) {
    case Role::Submitter:
      return "submitter";
    case Role::Admin:
      return "admin";
    case Role::Caller:
      return "caller";
    case Role::Peer:
    case Role::PeerBulk:
      break;
  }
  return "peer";
}

// Of a connection, as keys are known: both connections of a peer are the peer's.
Role role_of(const proto::Hello& hello) { return hello.role == Role::PeerBulk ? Role::Peer : hello.role; }

}  // namespace

bool Admission::refuse(ConnectionId connection, ErrorCode code, std::string message) {
  step_.refuse(connection, code, std::move(message));
  return false;
}

// An admin may do what a submitter may: a client says which of both it is by the token that it shows, and,
// once known, is the most that it was admitted as.
bool Admission::admit(const Introduced& event) {
  const proto::Hello& hello = event.hello;
  const Role role = role_of(hello);
  const bool is_client = role == Role::Submitter || role == Role::Admin;
  if (pool_.is_banned(event.who)) {
    step_.log("info hello_refused address=" + event.address + " key=" + to_string(event.who) +
              " reason=banned");
    return refuse(event.connection, ErrorCode::PermissionDenied, "the broker's operator has banned this key");
  }
  const auto has = [&](Role as) { return principals_.is_admitted(event.who, as); };
  const bool is_known = has(role) || (is_client && has(Role::Admin));
  if (!is_known && event.verdict != TokenVerdict::Valid) {
    const std::string why(reason_of(event.verdict));
    step_.log("info hello_refused address=" + event.address + " key=" + to_string(event.who) +
              " role=" + std::string(name_of(role)) + " reason=\"" + why + "\"");
    return refuse(event.connection, ErrorCode::PermissionDenied, why);
  }
  if (hello.major != proto::kProtocolMajor) {
    if (hello.role == Role::Peer) {  // shown as what it is
      Peer& peer = pool_.enter(event.who);
      if (!peer.connection) {
        peer.name = pool_.free_name(hello.name, event.who);
        peer.software = hello.software;
        peer.other_version = true;
        peer.last_heard = step_.now.monotonic;
        step_.peers = true;
      }
    }
    return refuse(event.connection, ErrorCode::VersionMismatch,
                  "this broker speaks protocol " + std::to_string(proto::kProtocolMajor) + "." +
                      std::to_string(proto::kProtocolMinor) + ", you speak " + std::to_string(hello.major) +
                      "." + std::to_string(hello.minor) + ": install weft " + options_.software);
  }
  if (is_client && clients_.count() >= options_.limits.clients_max)
    return refuse(event.connection, ErrorCode::ResourceExhausted,
                  "too many clients at once: try again later");
  if (is_client && clients_.count_of(event.who) >= options_.limits.clients_max_of_key)
    return refuse(event.connection, ErrorCode::ResourceExhausted,
                  "too many connections of this key at once: end some of them");
  const Role admitted = event.token_role.value_or(role);
  const bool is_news = event.verdict == TokenVerdict::Valid && !has(admitted);
  if (is_news) {
    const uint64_t token = hello.token ? hello.token->id : 0;
    principals_.admit(event.who, admitted, token);
    step_.record(PrincipalAdmitted{event.who, admitted, hello.name, token, step_.now.unix_ms});
    forget(token, event.who);
  }
  principals_.seen(event.who);
  return true;
}

// Each may have much under way: of many, the oldest have to go.
void Admission::enter_bulk(const Introduced& event) {
  size_t count = static_cast<size_t>(std::count_if(
      bulk_.begin(), bulk_.end(), [&](const auto& entry) { return entry.second == event.who; }));
  for (auto at = bulk_.begin(); at != bulk_.end() && count >= options_.limits.bulk_max_of_key;) {
    if (at->second == event.who) {
      step_.effect(Close{at->first});
      at = bulk_.erase(at);
      --count;
    } else {
      ++at;
    }
  }
  bulk_[event.connection] = event.who;
}

// For a newcomer. Needed are, beside it, who is listed, connected or has jobs.
void Admission::forget(uint64_t token, const PeerId& newcomer) {
  const auto is_needed = [&](const PeerId& who) {
    return who == newcomer || pool_.find(who) != nullptr || book_.count_of(who) > 0 ||
           clients_.count_of(who) > 0;
  };
  for (const PrincipalForgotten& forgotten : principals_.forget(token, is_needed)) step_.record(forgotten);
}

}  // namespace weft::broker
