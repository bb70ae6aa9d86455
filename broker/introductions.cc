// Who comes and goes: introductions, leases, loss, what is revoked.
#include <algorithm>
#include <set>
#include <utility>

#include "broker/broker.h"

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

// Of a connection, as keys are known: both connections of a peer are the peer's.
Role role_of(const proto::Hello& hello) { return hello.role == Role::PeerBulk ? Role::Peer : hello.role; }

}  // namespace

void Broker::refuse(ConnectionId connection, ErrorCode code, std::string message, bool retry) {
  step_.send(connection, proto::Refusal{.code = code, .message = std::move(message), .retry = retry});
  step_.effect(Close{connection});
}

void Broker::greet(ConnectionId connection, Role role, const std::string& name) {
  step_.effect(Admit{connection, role});
  step_.send(connection, proto::HelloAck{.software = options_.software,
                                         .name = name,
                                         .heartbeat_interval = options_.heartbeat_interval,
                                         .lease = options_.lease});
}

// An admin may do what a submitter may: a client says which of both it is by the token that it shows, and,
// once known, is the most that it was admitted as.
void Broker::on_introduced(const Introduced& event) {
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
    step_.log("info hello_refused address=" + event.address + " key=" + to_string(event.who));
    return refuse(event.connection, ErrorCode::PermissionDenied, std::string(reason_of(event.verdict)));
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
  if (is_client && clients_.size() >= options_.clients_max)
    return refuse(event.connection, ErrorCode::ResourceExhausted,
                  "too many clients at once: try again later");
  const auto is_its = [&](const auto& entry) { return entry.second.who == event.who; };
  if (is_client && static_cast<size_t>(std::count_if(clients_.begin(), clients_.end(), is_its)) >=
                       options_.clients_max_of_key)
    return refuse(event.connection, ErrorCode::ResourceExhausted,
                  "too many connections of this key at once: end some of them");
  const Role admitted = event.token_role.value_or(role);
  const bool is_news = event.verdict == TokenVerdict::Valid && !has(admitted);
  if (is_news) {
    const uint64_t token = hello.token ? hello.token->id : 0;
    principals_.admit(event.who, admitted, token);
    step_.record(PrincipalAdmitted{event.who, admitted, hello.name, token, step_.now.unix_ms});
    forget_principals(token, event.who);
  }
  principals_.seen(event.who);
  if (hello.role == Role::Peer) return admit_peer(event);
  if (hello.role == Role::PeerBulk) enter_bulk(event);
  if (is_client) clients_[event.connection] = {.who = event.who, .is_admin = has(Role::Admin)};
  greet(event.connection, hello.role, options_.name);
}

// The same key again. Another process that uses it is told so, as long as the first one is heard; else the
// newcomer takes the place of the old connection, which is a leftover.
void Broker::admit_peer(const Introduced& event) {
  const proto::Hello& hello = event.hello;
  if (!hello.device)
    return refuse(event.connection, ErrorCode::InvalidArgument, "a peer's Hello describes its device");
  Peer& peer = pool_.enter(event.who);
  Job* held = runs_.job_held(event.who, hello.holding);
  if (peer.connection) {
    if (peer.instance != hello.instance &&
        step_.now.monotonic - peer.last_heard < options_.heartbeat_interval * 3 / 2) {
      step_.log("warning identity_twice peer=" + peer.name + " key=" + to_string(peer.id) +
                " address=" + event.address + " first=" + peer.address);
      return refuse(event.connection, ErrorCode::Unavailable,
                    "another weft join uses this identity (connected from " + peer.address +
                        "): give each its own --data-dir",
                    /*retry=*/true);
    }
    const ConnectionId old = *peer.connection;
    if (held != nullptr) {
      pool_.disconnect(peer);
    } else {
      lose_peer(peer, "it connected anew from " + event.address);
    }
    step_.effect(Close{old});
  }
  peer.name = pool_.free_name(hello.name, event.who);
  peer.software = hello.software;
  // Elsewhere, or reached in another way, it has other links.
  if (host_of(peer.address) != host_of(event.address) ||
      peer.device.addresses.empty() != hello.device->addresses.empty())
    probes_.forget_links(event.who);
  if (peer.instance != hello.instance) peer.times.reset();  // it has measured itself anew
  peer.device = *hello.device;
  peer.instance = hello.instance;
  peer.minor = hello.minor;
  peer.address = event.address;
  peer.last_heard = step_.now.monotonic;
  peer.draining = peer.device_lost = peer.other_version = false;
  pool_.connect(peer, event.connection);
  probes_.let_rest_end(event.who);
  step_.peers = step_.stand_bys = step_.probes = true;
  pool_.changed();
  // Whatever it failed by may have passed; but who held a run up is as silent after it has dialled anew.
  for (auto& [number, job] : book_.jobs())
    if (!job.losses.blamed.contains(event.who)) job.losses.excluded.erase(event.who);
  greet(event.connection, Role::Peer, peer.name);
  step_.log("info peer_joined peer=" + peer.name + " key=" + to_string(peer.id) +
            " address=" + event.address + " device=" + peer.device.device);
  if (held != nullptr) return runs_.ask_to_resume(*held, peer);
  if (hello.holding)
    step_.send(event.connection, proto::ReleaseStage{hello.holding->run, hello.holding->plan_version,
                                                     "the run goes on without it"});
  if (peer.serving) recover(book_.at(*peer.serving), "peer " + peer.name + " came back without its stage");
  step_.jobs = true;
}

// Each may have much under way: of many, the oldest have to go.
void Broker::enter_bulk(const Introduced& event) {
  size_t count = static_cast<size_t>(std::count_if(
      bulk_.begin(), bulk_.end(), [&](const auto& entry) { return entry.second == event.who; }));
  for (auto at = bulk_.begin(); at != bulk_.end() && count >= options_.bulk_max_of_key;) {
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

void Broker::on_disconnected(const Disconnected& event) {
  clients_.erase(event.connection);
  bulk_.erase(event.connection);
  if (Peer* peer = pool_.of(event.connection)) lose_peer(*peer, event.reason);
}

void Broker::lose_peer(Peer& peer, const std::string& why) {
  if (!peer.connection) return;
  pool_.disconnect(peer);
  stand_bys_.forget(peer.id);
  probes_.drop(peer.id);
  step_.peers = step_.stand_bys = true;
  step_.log("info peer_lost peer=" + peer.name + " key=" + to_string(peer.id) + " reason=\"" + why + "\"");
  if (!peer.serving) return;
  Job& job = book_.at(*peer.serving);
  // A peer that has yet to resume its stage may be back in time.
  if (const phase::Running* at = job.running())
    if (const auto stage = at->crew.stage_of(peer.id); stage && !at->crew.stages[*stage].here) return;
  recover(job, "peer " + peer.name + " is gone (" + why + ")");
}

void Broker::disconnect(Peer& peer, ErrorCode code, const std::string& why) {
  if (!peer.connection) return;
  refuse(*peer.connection, code, why);
  lose_peer(peer, why);
}

// `until`: what came later may not have been told yet.
void Broker::check_leases(Instant until) {
  for (const PeerId& id : pool_.late(until)) {
    Peer& peer = pool_.at(id);
    ++step_.counters.evicted;
    step_.effect(Close{*peer.connection});
    lose_peer(peer, "nothing heard for " + std::to_string(static_cast<int>(seconds(options_.lease))) + " s");
  }
}

void Broker::forget_gone() {
  std::set<PeerId> needed;
  bool is_known = false;
  const auto is_needed = [&](const PeerId& id) {
    if (!std::exchange(is_known, true))
      for (const auto& [number, job] : book_.jobs()) {
        const Crew* crew = job.crew();
        for (const auto& plan : {crew != nullptr ? crew->plan : nullptr, job.previous.plan})
          if (plan != nullptr)
            for (const PlannedStage& stage : plan->stages) needed.insert(stage.peer);
        for (const auto& [blob, holders] : job.points.holders) needed.insert(holders.begin(), holders.end());
      }
    return needed.contains(id);
  };
  for (const PeerId& id : pool_.forget_gone(is_needed)) {
    probes_.forget_links(id);
    step_.peers = true;
  }
}

// For a newcomer. Needed are, beside it, who is listed, connected or has jobs.
void Broker::forget_principals(uint64_t token, const PeerId& newcomer) {
  const auto is_needed = [&](const PeerId& who) {
    return who == newcomer || pool_.find(who) != nullptr || book_.count_of(who) > 0 ||
           std::any_of(clients_.begin(), clients_.end(),
                       [&](const auto& entry) { return entry.second.who == who; });
  };
  for (const PrincipalForgotten& forgotten : principals_.forget(token, is_needed)) step_.record(forgotten);
}

// What such a token admitted goes, and is known no more.
void Broker::on_tokens_revoked(const TokensRevoked& event) {
  for (const auto& [who, gone] : principals_.revoke(event.tokens)) {
    step_.log("info key_revoked key=" + to_string(who));
    const std::string why = "the token that admitted this key has been revoked";
    if (gone.contains(Role::Peer))
      if (Peer* peer = pool_.find(who)) disconnect(*peer, ErrorCode::PermissionDenied, why);
    std::erase_if(clients_, [&, who = who](const auto& entry) {
      const bool ends = entry.second.who == who;
      if (ends) refuse(entry.first, ErrorCode::PermissionDenied, why);
      return ends;
    });
    step_.effect(CloseAll{who});
  }
}

}  // namespace weft::broker
