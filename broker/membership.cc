#include "broker/membership.h"

#include <optional>
#include <set>

namespace weft::broker {

using proto::Role;

Membership::Membership(const BrokerOptions& options, const Rooms& rooms, Recovery& recovery, Clients& clients,
                       Admission& admission)
    : options_(options),
      step_(rooms.step),
      pool_(rooms.pool),
      book_(rooms.book),
      runs_(rooms.runs),
      stand_bys_(rooms.stand_bys),
      probes_(rooms.probes),
      recovery_(recovery),
      clients_(clients),
      admission_(admission) {}

void Membership::greet(const Introduced& event, const std::string& name) {
  step_.effect(Admit{event.connection, event.hello.role});
  step_.send(event.connection, proto::HelloAck{.software = options_.software,
                                               .name = name,
                                               .heartbeat_interval = options_.heartbeat_interval,
                                               .lease = options_.lease,
                                               .unix_ms = step_.now.unix_ms,
                                               .address = event.address});
}

void Membership::on_introduced(const Introduced& event) {
  if (!admission_.admit(event)) return;
  const Role role = event.hello.role;
  if (role == Role::Peer) return admit_peer(event);
  if (role == Role::PeerBulk)
    admission_.enter_bulk(event);
  else if (is_user(role))
    clients_.enter(event.connection, event.who, admission_.is_admin(event.who));
  greet(event, options_.name);
}

// The same key again. Another process that uses it is told so, as long as the first one is heard; else the
// newcomer takes the place of the old connection, which is a leftover.
void Membership::admit_peer(const Introduced& event) {
  const proto::Hello& hello = event.hello;
  if (!hello.device)
    return step_.refuse(event.connection, ErrorCode::InvalidArgument, "a peer's Hello describes its device");
  Peer& peer = pool_.enter(event.who);
  const std::vector<Job*> held = runs_.jobs_held(event.who, hello.holding);
  if (peer.connection) {
    if (peer.instance != hello.instance &&
        step_.now.monotonic - peer.last_heard < options_.heartbeat_interval * 3 / 2) {
      step_.log("warning identity_twice peer=" + peer.name + " key=" + to_string(peer.id) +
                " address=" + event.address + " first=" + peer.address);
      return step_.refuse(event.connection, ErrorCode::Unavailable,
                          "another weft join uses this identity (connected from " + peer.address +
                              "): give each its own --data-dir",
                          /*retry=*/true);
    }
    const ConnectionId old = *peer.connection;
    if (!held.empty()) {
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
  if (peer.device.addresses != hello.device->addresses || host_of(peer.address) != host_of(event.address))
    peer.was_dialled.reset();
  if (peer.instance != hello.instance) peer.times.reset();  // it has measured itself anew
  peer.device = *hello.device;
  peer.instance = hello.instance;
  peer.minor = hello.minor;
  peer.address = event.address;
  peer.last_heard = step_.now.monotonic;
  peer.draining = peer.device_lost = peer.other_version = false;
  peer.goodbye.reset();
  pool_.connect(peer, event.connection);
  probes_.let_rest_end(event.who);
  step_.peers = step_.stand_bys = step_.probes = true;
  pool_.changed();
  // Whatever it failed by may have passed; but who held a run up is as silent after it has dialled anew.
  for (auto& [number, job] : book_.jobs())
    if (!job.losses.blamed.contains(event.who)) job.losses.excluded.erase(event.who);
  greet(event, peer.name);
  step_.log("info peer_joined peer=" + peer.name + " key=" + to_string(peer.id) +
            " address=" + event.address + " device=" + peer.device.device);
  resume_stages(peer, held, hello.holding);
}

// `held`: the jobs of those stages that the peer says it holds, and that are its own.
void Membership::resume_stages(Peer& peer, const std::vector<Job*>& held,
                               const std::vector<proto::StageHeld>& said) {
  std::set<proto::JobNumber> resumed;
  for (Job* job : held) resumed.insert(job->number());
  for (const proto::StageHeld& stage : said)
    if (!resumed.contains(stage.run))
      pool_.send(peer.id, proto::ReleaseStage{stage.run, stage.plan_version, "the run goes on without it"});
  for (Job* job : held) runs_.ask_to_resume(*job, peer);
  for (const proto::JobNumber number : peer.jobs())
    if (!resumed.contains(number))
      recovery_.recover(book_.at(number), "peer " + peer.name + " came back without its stage");
  if (held.empty()) step_.jobs = true;
}

void Membership::on_disconnected(const Disconnected& event) {
  clients_.leave(event.connection);
  admission_.leave(event.connection);
  if (Peer* peer = pool_.of(event.connection)) lose_peer(*peer, event.reason);
}

void Membership::lose_peer(Peer& peer, const std::string& why) {
  if (!peer.connection) return;
  pool_.disconnect(peer);
  stand_bys_.forget(peer.id);
  probes_.drop(peer.id);
  step_.peers = step_.stand_bys = true;
  step_.log("info peer_lost peer=" + peer.name + " key=" + to_string(peer.id) + " reason=\"" + why + "\"");
  for (const proto::JobNumber number : peer.jobs()) {
    Job& job = book_.at(number);
    // A peer that has yet to resume its stage may be back in time.
    if (const phase::Running* at = job.running())
      if (const auto stage = at->crew.stage_of(peer.id); stage && !at->crew.stages[*stage].here) continue;
    if (recovery_.leave_out(job, peer, "peer " + peer.name + " is gone (" + why + ")")) continue;
    recovery_.recover(job, "peer " + peer.name + " is gone (" + why + ")");
  }
}

void Membership::disconnect(Peer& peer, ErrorCode code, const std::string& why) {
  if (!peer.connection) return;
  step_.refuse(*peer.connection, code, why);
  lose_peer(peer, why);
}

void Membership::check_leases(Instant until) {
  for (const PeerId& id : pool_.late(until)) {
    Peer& peer = pool_.at(id);
    ++step_.counters.evicted;
    step_.effect(Close{*peer.connection});
    lose_peer(peer, "nothing heard for " + std::to_string(static_cast<int>(seconds(options_.lease))) + " s");
  }
}

void Membership::forget_gone() {
  std::optional<std::set<PeerId>> needed;
  const auto is_needed = [&](const PeerId& id) {
    if (!needed) needed = book_.peers_needed();
    return needed->contains(id);
  };
  for (const PeerId& id : pool_.forget_gone(is_needed)) {
    probes_.forget_links(id);
    step_.peers = true;
  }
}

// What such a token admitted goes, and is known no more.
void Membership::on_tokens_revoked(const TokensRevoked& event) {
  for (const auto& [who, gone] : admission_.revoke(event.tokens)) {
    step_.log("info key_revoked key=" + to_string(who));
    const std::string why = "the token that admitted this key has been revoked";
    if (gone.contains(Role::Peer))
      if (Peer* peer = pool_.find(who)) disconnect(*peer, ErrorCode::PermissionDenied, why);
    clients_.leave(who, why);
    step_.effect(CloseAll{who});
  }
}

}  // namespace weft::broker
