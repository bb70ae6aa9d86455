#include "broker/pool/pool.h"

#include <algorithm>

namespace weft::broker {

namespace {
// A device is believed to have become slower or faster by more than this.
constexpr double kNews = 0.15;
constexpr double kTimesMin = 0.5, kTimesMax = 50;
}  // namespace

std::string_view host_of(std::string_view address) { return address.substr(0, address.rfind(':')); }

std::vector<proto::JobNumber> Peer::jobs() const {
  std::vector<proto::JobNumber> jobs;
  jobs.reserve(stages.size());
  for (const auto& [job, stage] : stages) jobs.push_back(job);
  return jobs;
}

Peer* Pool::find(const PeerId& id) {
  const auto at = peers_.find(id);
  return at == peers_.end() ? nullptr : &at->second;
}

const Peer* Pool::find(const PeerId& id) const {
  const auto at = peers_.find(id);
  return at == peers_.end() ? nullptr : &at->second;
}

Peer* Pool::find_by_name(const std::string& name) {
  for (auto& [id, peer] : peers_)
    if (peer.name == name || to_string(id) == name) return &peer;
  return nullptr;
}

Peer* Pool::of(ConnectionId connection) {
  const auto at = by_connection_.find(connection);
  return at == by_connection_.end() ? nullptr : &peers_.at(at->second);
}

Peer& Pool::enter(const PeerId& id) {
  Peer& peer = peers_[id];
  peer.id = id;
  return peer;
}

void Pool::connect(Peer& peer, ConnectionId connection) {
  WEFT_CHECK(!peer.connection);
  peer.connection = connection;
  peer.connected_at = step_.now.monotonic;
  by_connection_[connection] = peer.id;
}

void Pool::disconnect(Peer& peer) {
  if (!peer.connection) return;
  by_connection_.erase(*peer.connection);
  peer.connection.reset();
}

std::vector<PeerId> Pool::forget_gone(const std::function<bool(const PeerId&)>& is_needed) {
  const size_t gone = peers_.size() - by_connection_.size();
  const Instant now = step_.now.monotonic;
  const bool are_many = gone > options_.gone_max;
  const auto is_old = [&](const Peer& peer) { return now - peer.last_heard > options_.gone_for; };
  std::vector<std::pair<Instant, PeerId>> since;
  for (const auto& [id, peer] : peers_)
    if (!peer.connection && (are_many || is_old(peer)) && peer.is_idle() && !is_banned(id) && !is_needed(id))
      since.emplace_back(peer.last_heard, id);
  std::sort(since.begin(), since.end());
  const size_t too_many = are_many ? std::min(since.size(), gone - options_.gone_max) : 0;
  std::vector<PeerId> forgotten;
  for (size_t i = 0; i < since.size(); ++i) {
    const PeerId& id = since[i].second;
    if (i >= too_many && !is_old(peers_.at(id))) break;
    peers_.erase(id);
    forgotten.push_back(id);
  }
  return forgotten;
}

void Pool::send(const PeerId& id, proto::Message message, proto::EncodedBytes bytes) {
  const Peer* peer = find(id);
  if (peer != nullptr && peer->connection)
    step_.send(*peer->connection, std::move(message), std::move(bytes));
}

std::vector<PeerId> Pool::late(Instant until) const {
  std::vector<PeerId> late;
  for (const auto& [id, peer] : peers_)
    if (peer.connection && until - peer.last_heard > options_.lease) late.push_back(id);
  return late;
}

std::string Pool::free_name(const std::string& wanted, const PeerId& id) const {
  const std::string base = wanted.empty() ? "peer-" + to_string(id).substr(0, 6) : wanted;
  const bool taken = std::any_of(peers_.begin(), peers_.end(), [&](const auto& entry) {
    return entry.second.name == base && entry.first != id;
  });
  return taken ? base + "-" + to_string(id).substr(0, 6) : base;
}

void Pool::release(proto::JobNumber job) {
  for (auto& [id, peer] : peers_) peer.stages.erase(job);
}

bool Pool::failed_stage(Peer& peer) {
  constexpr uint32_t kDoublings = 7;
  if (++peer.stages_failed < options_.failures_max) return false;
  const uint32_t more = std::min(peer.stages_failed - options_.failures_max, kDoublings);
  const Duration pause = std::min(options_.left_out_max, options_.left_out * (int64_t{1} << more));
  peer.left_out_until = step_.now.monotonic + pause;
  step_.log("warning peer_left_out peer=" + peer.name +
            " stages_failed=" + std::to_string(peer.stages_failed) +
            " seconds=" + std::to_string(static_cast<int>(seconds(pause))));
  step_.peers = step_.stand_bys = true;
  return true;
}

void Pool::let_in() {
  for (auto& [id, peer] : peers_)
    if (peer.left_out_until && *peer.left_out_until <= step_.now.monotonic) {
      peer.left_out_until.reset();
      step_.peers = step_.stand_bys = step_.jobs = true;
      changed();
    }
}

void Pool::ban(const PeerId& id, const std::string& name, bool banned) {
  if (banned == is_banned(id)) return;
  if (banned)
    banned_.insert(id);
  else
    banned_.erase(id);
  step_.record(PeerBanned{id, name, banned});
  step_.peers = true;
}

std::map<std::string, double> Pool::usual_times() const {
  std::map<std::string, std::vector<double>> all;
  for (const auto& [id, peer] : peers_)
    if (peer.times && peer.connection) all[peer.device.fingerprint].push_back(*peer.times);
  std::map<std::string, double> usual;
  for (auto& [fingerprint, times] : all) {
    const auto middle = times.begin() + static_cast<long>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    usual[fingerprint] = *middle;
  }
  return usual;
}

double Pool::times_of(const Peer& peer, const std::map<std::string, double>& usual) {
  if (peer.times) return *peer.times;
  const auto of_kind = usual.find(peer.device.fingerprint);
  return of_kind == usual.end() ? 1 : of_kind->second;
}

void Pool::learn_times(Peer& peer, double times) {
  times = std::clamp(times, kTimesMin, kTimesMax);
  const double before = peer.times.value_or(1);
  if (std::abs(times - before) > kNews * std::min(times, before)) ++devices_version_;
  peer.times = times;
}

proto::PeerStatus Pool::status_of(const Peer& peer) const {
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
  status.seconds_since_heard = seconds(step_.now.monotonic - peer.last_heard);
  if (status.reachable)
    status.reach = !peer.was_dialled   ? proto::Reach::Untried
                   : *peer.was_dialled ? proto::Reach::Direct
                                       : proto::Reach::Closed;
  if (peer.goodbye) status.reason = peer.goodbye->reason;
  status.jobs = peer.jobs();
  status.state = state_of(peer);
  return status;
}

std::string Pool::state_of(const Peer& peer) const {
  if (is_banned(peer.id)) return "banned";
  if (peer.other_version) return "other version";
  if (!peer.connection) return !peer.goodbye ? "gone" : peer.goodbye->returns ? "paused" : "left";
  if (step_.now.monotonic - peer.last_heard > options_.lease / 2) return "suspect";
  if (peer.draining) return "draining";
  if (is_left_out(peer) && peer.is_idle()) return "left out";
  return peer.is_idle() ? "pool" : "active";
}

proto::PeerList Pool::list() const {
  proto::PeerList list;
  for (const auto& [id, peer] : peers_) list.peers.push_back(status_of(peer));
  list.blob_bytes = step_.disk.blobs;
  list.disk_free = step_.disk.free;
  list.disk_size = step_.disk.size;
  return list;
}

}  // namespace weft::broker
