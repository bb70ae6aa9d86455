// Who is there: introductions, leases, loss.
#include <algorithm>

#include "broker/broker.h"
#include "broker/candidates.h"

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
      return "the token is for another role (weft token create --role peer|submitter)";
  }
  return "";
}

// Where a connection comes from, without its port.
std::string_view host_of(std::string_view address) { return address.substr(0, address.rfind(':')); }

}  // namespace

void Broker::refuse(ConnectionId connection, ErrorCode code, std::string message, bool retry) {
  send(connection, proto::Refusal{.code = code, .message = std::move(message), .retry = retry});
  out_->effects.push_back(Close{connection});
}

void Broker::on_introduced(const Introduced& event) {
  const proto::Hello& hello = event.hello;
  const Role role = hello.role == Role::PeerBulk ? Role::Peer : hello.role;
  const auto known = known_.find(event.who);
  const bool is_known = known != known_.end() && known->second.contains(role);
  if (!is_known && event.verdict != TokenVerdict::Valid) {
    log("info hello_refused address=" + event.address + " key=" + to_string(event.who));
    return refuse(event.connection, ErrorCode::PermissionDenied, std::string(reason_of(event.verdict)));
  }
  if (hello.major != proto::kProtocolMajor) {
    if (hello.role == Role::Peer) {  // shown as what it is
      Peer& peer = peers_[event.who];
      if (!peer.connection) {
        peer.id = event.who;
        peer.name = free_name(hello.name, event.who);
        peer.software = hello.software;
        peer.other_version = true;
        peer.last_heard = now_.monotonic;
        peers_dirty_ = true;
      }
    }
    return refuse(event.connection, ErrorCode::VersionMismatch,
                  "this broker speaks protocol " + std::to_string(proto::kProtocolMajor) + "." +
                      std::to_string(proto::kProtocolMinor) + ", you speak " + std::to_string(hello.major) +
                      "." + std::to_string(hello.minor) + ": install weft " + options_.software);
  }
  if (role == Role::Submitter && clients_.size() >= options_.clients_max)
    return refuse(event.connection, ErrorCode::ResourceExhausted,
                  "too many clients at once: try again later");
  if (!is_known) {
    known_[event.who].insert(role);
    out_->records.push_back(
        PrincipalAdmitted{event.who, role, hello.name, hello.token ? hello.token->id : 0, now_.unix_ms});
  }
  if (hello.role == Role::Peer) return admit_peer(event);
  if (role == Role::Submitter) clients_.insert(event.connection);
  out_->effects.push_back(Admit{event.connection, hello.role});
  send(event.connection, proto::HelloAck{.software = options_.software,
                                         .name = options_.name,
                                         .heartbeat_interval = options_.heartbeat_interval,
                                         .lease = options_.lease});
}

std::string Broker::free_name(const std::string& wanted, const PeerId& id) const {
  const std::string base = wanted.empty() ? "peer-" + to_string(id).substr(0, 6) : wanted;
  const auto taken = [&](const std::string& name) {
    return std::any_of(peers_.begin(), peers_.end(),
                       [&](const auto& entry) { return entry.second.name == name && entry.first != id; });
  };
  return taken(base) ? base + "-" + to_string(id).substr(0, 6) : base;
}

// The same key again. Another process that uses it is told so, as long as the first one is heard; else the
// newcomer takes the place of the old connection, which is a leftover.
void Broker::admit_peer(const Introduced& event) {
  const proto::Hello& hello = event.hello;
  if (!hello.device)
    return refuse(event.connection, ErrorCode::InvalidArgument, "a peer's Hello describes its device");
  Peer& peer = peers_[event.who];
  peer.id = event.who;
  Job* held = job_held(event.who, hello.holding);
  if (peer.connection) {
    if (peer.instance != hello.instance &&
        now_.monotonic - peer.last_heard < options_.heartbeat_interval * 3 / 2) {
      log("warning identity_twice peer=" + peer.name + " key=" + to_string(peer.id) +
          " address=" + event.address + " first=" + peer.address);
      return refuse(event.connection, ErrorCode::Unavailable,
                    "another weft join uses this identity (connected from " + peer.address +
                        "): give each its own --data-dir",
                    /*retry=*/true);
    }
    const ConnectionId old = *peer.connection;
    if (held != nullptr) {
      peer_of_connection_.erase(old);
      peer.connection.reset();
    } else {
      lose_peer(peer, "it connected anew from " + event.address);
      peer.standing.clear();
    }
    out_->effects.push_back(Close{old});
  }
  peer.name = free_name(hello.name, event.who);
  peer.software = hello.software;
  // Elsewhere, or reached in another way, it has other links.
  if (host_of(peer.address) != host_of(event.address) ||
      peer.device.addresses.empty() != hello.device->addresses.empty())
    links_.forget(event.who);
  if (peer.instance != hello.instance) peer.times.reset();  // it has measured itself anew
  peer.device = *hello.device;
  peer.connection = event.connection;
  peer.instance = hello.instance;
  peer.minor = hello.minor;
  peer.address = event.address;
  peer.last_heard = now_.monotonic;
  peer.draining = peer.device_lost = peer.other_version = false;
  peer_of_connection_[event.connection] = event.who;
  resting_.erase(event.who);
  peers_dirty_ = stand_bys_dirty_ = probes_dirty_ = true;
  ++pool_version_;
  for (auto& [number, job] : jobs_) job.excluded.erase(event.who);
  out_->effects.push_back(Admit{event.connection, Role::Peer});
  send(event.connection, proto::HelloAck{.software = options_.software,
                                         .name = peer.name,
                                         .heartbeat_interval = options_.heartbeat_interval,
                                         .lease = options_.lease});
  log("info peer_joined peer=" + peer.name + " key=" + to_string(peer.id) + " address=" + event.address +
      " device=" + peer.device.device);
  if (held != nullptr) return ask_to_resume(*held, peer);
  if (hello.holding)
    send(event.connection,
         proto::ReleaseStage{hello.holding->run, hello.holding->plan_version, "the run goes on without it"});
  if (peer.serving) recover(jobs_.at(*peer.serving), "peer " + peer.name + " came back without its stage");
  schedule_jobs();
}

void Broker::on_disconnected(const Disconnected& event) {
  clients_.erase(event.connection);
  const auto at = peer_of_connection_.find(event.connection);
  if (at == peer_of_connection_.end()) return;
  lose_peer(peers_.at(at->second), event.reason);
}

void Broker::lose_peer(Peer& peer, const std::string& why) {
  if (!peer.connection) return;
  peer_of_connection_.erase(*peer.connection);
  peer.connection.reset();
  peer.standing.clear();
  drop_probe(peer.id);
  peers_dirty_ = stand_bys_dirty_ = true;
  log("info peer_lost peer=" + peer.name + " key=" + to_string(peer.id) + " reason=\"" + why + "\"");
  if (!peer.serving) return;
  Job& job = jobs_.at(*peer.serving);
  // A peer that has yet to resume its stage may be back in time.
  for (size_t s = 0; job.run && s < job.seats.size(); ++s)
    if (job.plan->stages[s].peer == peer.id && !job.seats[s].here) return;
  recover(job, "peer " + peer.name + " is gone (" + why + ")");
}

void Broker::check_leases() {
  std::vector<PeerId> late;
  for (auto& [id, peer] : peers_)
    if (peer.connection && now_.monotonic - peer.last_heard > options_.lease) late.push_back(id);
  for (const PeerId& id : late) {
    Peer& peer = peers_.at(id);
    ++counters_.evicted;
    out_->effects.push_back(Close{*peer.connection});
    lose_peer(peer, "nothing heard for " + std::to_string(static_cast<int>(seconds(options_.lease))) + " s");
  }
}

proto::PeerStatus Broker::status_of(const Peer& peer) const {
  proto::PeerStatus status;
  status.peer = peer.id;
  status.name = peer.name;
  status.region = peer.device.region;
  status.owner = peer.device.owner;
  status.device = peer.device.device;
  status.software = peer.software;
  status.rates = peer.device.rates;
  status.memory = peer.device.memory;
  status.reachable = !peer.device.addresses.empty();
  status.seconds_since_heard = seconds(now_.monotonic - peer.last_heard);
  if (peer.other_version)
    status.state = "other version";
  else if (!peer.connection)
    status.state = "gone";
  else if (status.seconds_since_heard > seconds(options_.lease) / 2)
    status.state = "suspect";
  else if (peer.draining)
    status.state = "draining";
  else
    status.state = peer.serving ? "active" : "pool";
  return status;
}

void Broker::publish_peers() {
  proto::PeerList list;
  for (const auto& [id, peer] : peers_) list.peers.push_back(status_of(peer));
  out_->effects.push_back(PublishPeers{std::move(list)});
  peers_dirty_ = false;
}

bool Broker::Job::excludes(const std::string& peer) const {
  const auto& names = submitted.submission.excluded;
  return std::find(names.begin(), names.end(), peer) != names.end();
}

bool Broker::Job::may_send(const Peer& peer) const {
  return !submitted.submission.compresses || peer.minor >= proto::kProtocolMinorOfCodecs;
}

bool Broker::Job::suits(const Peer& peer) const {
  return may_send(peer) && peer.device.has(submitted.submission.arithmetic);
}

static std::string describe_lack(const proto::DeviceReport& device, dag::Arithmetic wanted) {
  std::string text = "has no arithmetic in " + std::string(to_string(wanted)) + ", only in ";
  for (size_t i = 0; i < device.arithmetic.size(); ++i)
    text += (i == 0 ? "" : " and ") + std::string(to_string(device.arithmetic[i]));
  return text;
}

// Why a peer cannot be had for a job; nothing: it can.
std::optional<std::string> Broker::why_not(const Peer& peer, const Job& job, bool own) const {
  if (peer.other_version) return "speaks another version";
  if (!peer.connection) return "is away";
  if (job.excludes(peer.name)) return "is excluded by the job";
  if (!job.may_send(peer))
    return "cannot read compressed tensors: its weft (" + peer.software + ") is too old";
  if (!job.suits(peer)) return describe_lack(peer.device, job.submitted.submission.arithmetic);
  if (job.excluded.contains(peer.id)) return "failed this job before";
  if (peer.device_lost) return "has lost its device";
  if (peer.draining) return "is leaving";
  if (peer.serving && !(own && peer.serving == job.submitted.job))
    return "works on job " + std::to_string(*peer.serving);
  return std::nullopt;
}

// The peers that a waiting job does not get, by name.
std::string Broker::describe_others(const Job& job) const {
  constexpr size_t kNamesMax = 8;
  std::vector<std::string> others;
  for (const auto& [id, peer] : peers_)
    if (const auto why = why_not(peer, job, false)) others.push_back(peer.name + " " + *why);
  std::sort(others.begin(), others.end());
  std::string text;
  for (size_t i = 0; i < std::min(others.size(), kNamesMax); ++i) text += "; " + others[i];
  if (others.size() > kNamesMax) text += "; and " + std::to_string(others.size() - kNamesMax) + " more";
  return text;
}

std::vector<Candidate> Broker::candidates(const Job& job, bool own) const {
  std::vector<Candidate> free;
  const std::map<std::string, double> usual = usual_times();
  for (const auto& [id, peer] : peers_)
    if (!why_not(peer, job, own)) {
      free.push_back({id, peer.name, peer.device});
      slow_down(free.back().device.rates, times_of(peer, usual));
    }
  return free;
}

}  // namespace weft::broker
