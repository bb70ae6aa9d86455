// Measured links: which pairs of peers measure the link between them, one round after the other, and what is
// made of it.
#include <algorithm>
#include <cstdio>

#include "broker/broker.h"
#include "broker/candidates.h"

namespace weft::broker {

namespace {
constexpr uint64_t kBytesMax = 16 << 20;  // each way
constexpr Duration kTimeMax = std::chrono::milliseconds(1200);
constexpr Duration kProbeDeadline = std::chrono::seconds(15);
constexpr Duration kRoundDeadline = std::chrono::seconds(17);
// Who did not answer, or had something else to do, is not asked again for so long.
constexpr Duration kRest = std::chrono::seconds(30);
// Beyond these nobody is believed.
constexpr double kRateMin = 1e3, kRateMax = 125e9;
constexpr Duration kRoundTripMax = std::chrono::seconds(60);
constexpr size_t kEndsWithPairs = 64;  // of more peers sites alone are listed
constexpr uint32_t kSitesListed = 256;
}  // namespace

bool Broker::may_probe(const Peer& peer) const {
  if (!peer.connection || peer.draining || peer.minor < proto::kProtocolMinorOfProbes) return false;
  const auto resting = resting_.find(peer.id);
  return resting == resting_.end() || resting->second <= now_.monotonic;
}

// Nothing disturbs a measurement: no run, and no tensors that are fetched for one.
std::vector<PeerId> Broker::idle_peers() const {
  const auto holds_all = [](const auto& entry) { return entry.second.complete == entry.second.step; };
  std::vector<PeerId> idle;
  for (const auto& [id, peer] : peers_)
    if (may_probe(peer) && !peer.serving &&
        std::all_of(peer.standing.begin(), peer.standing.end(), holds_all))
      idle.push_back(id);
  return idle;
}

void Broker::update_probes() {
  probes_dirty_ = false;
  if (!options_.measures_links) return;
  if (round_ && now_.monotonic >= round_->deadline) end_round();
  if (round_) return;
  std::erase_if(resting_, [&](const auto& entry) { return entry.second <= now_.monotonic; });
  const auto pairs = links_.next_round(idle_peers(), now_.monotonic);
  if (!pairs.empty()) start_round(pairs);
}

void Broker::start_round(const std::vector<LinkBook::Pair>& pairs) {
  round_ = ProbeRound{.number = ++rounds_, .deadline = now_.monotonic + kRoundDeadline, .probes = {}};
  for (const LinkBook::Pair& pair : pairs) {
    PairProbe probe{.dials = pair.dials, .accepts = pair.accepts, .ticket = options_.draw_secret()};
    // Who cannot be dialled dials.
    if (peers_.at(probe.accepts).device.addresses.empty() && !peers_.at(probe.dials).device.addresses.empty())
      std::swap(probe.dials, probe.accepts);
    out_->effects.push_back(GrantRelay{probe.ticket});
    tell_probe(probe, probe.accepts, probe.dials);
    tell_probe(probe, probe.dials, probe.accepts);
    round_->probes.push_back(probe);
  }
}

void Broker::tell_probe(const PairProbe& probe, const PeerId& to, const PeerId& other) {
  const proto::DeviceReport& device = peers_.at(other).device;
  send_to_peer(to, proto::ProbeLink{.round = round_->number,
                                    .peer = other,
                                    .dials = to == probe.dials,
                                    .addresses = device.addresses,
                                    .relay_ticket = probe.ticket,
                                    .region = device.region,
                                    .bytes_max = kBytesMax,
                                    .time_max = kTimeMax,
                                    .deadline = kProbeDeadline});
}

Broker::PairProbe* Broker::probe_of(const PeerId& peer) {
  if (!round_) return nullptr;
  for (PairProbe& probe : round_->probes)
    if (probe.dials == peer || probe.accepts == peer) return &probe;
  return nullptr;
}

void Broker::on_probe_report(Peer& peer, const proto::ProbeReport& report) {
  PairProbe* probe = round_ && round_->number == report.round ? probe_of(peer.id) : nullptr;
  const bool dialled = probe != nullptr && probe->dials == peer.id;
  if (probe == nullptr || report.peer != (dialled ? probe->accepts : probe->dials) ||
      (dialled ? probe->dialler_said : probe->acceptor_said)) {
    ++counters_.stale_dropped;
    return;
  }
  (dialled ? probe->dialler_said : probe->acceptor_said) = true;
  probe->measured = probe->measured || !report.failure;
  if (report.failure)
    on_probe_failed(*probe, peer, *report.failure);
  else
    on_measured({.from = report.peer,
                 .to = peer.id,
                 .bytes_per_second = std::clamp(report.bytes_per_second, kRateMin, kRateMax),
                 .round_trip = std::min(report.round_trip, kRoundTripMax),
                 .is_relayed = report.relayed,
                 .at = now_.monotonic});
  end_probe();
}

void Broker::on_measured(const LinkSample& sample) {
  char figures[80];
  std::snprintf(figures, sizeof figures, "mbit_per_second=%.3g round_trip_ms=%.3g",
                sample.bytes_per_second * 8e-6, seconds(sample.round_trip) * 1e3);
  log("info link_measured from=" + peers_.at(sample.from).name + " to=" + peers_.at(sample.to).name + " " +
      figures + (sample.is_relayed ? " way=relay" : " way=direct"));
  links_.record(sample);
}

// Who dials has tried every way; who waits cannot tell why nobody came.
void Broker::on_probe_failed(PairProbe& probe, const Peer& peer, const Error& error) {
  const PeerId& other = peer.id == probe.dials ? probe.accepts : probe.dials;
  log("warning link_not_measured round=" + std::to_string(round_->number) + " peer=" + peer.name +
      " other=" + peers_.at(other).name + " reason=\"" + error.message + "\"");
  const bool is_no_way = error.code == ErrorCode::Unavailable || error.code == ErrorCode::Timeout;
  if (is_no_way && peer.id == probe.accepts) return;
  if (is_no_way && !probe.measured) {
    links_.record({.from = peer.id, .to = other, .at = now_.monotonic});
    links_.record({.from = other, .to = peer.id, .at = now_.monotonic});
  } else {
    resting_[peer.id] = resting_[other] = now_.monotonic + kRest;
  }
  probe.dialler_said = probe.acceptor_said = true;
}

// Of a peer that has gone nothing is waited for.
void Broker::drop_probe(const PeerId& peer) {
  PairProbe* probe = probe_of(peer);
  if (probe == nullptr) return;
  probe->dialler_said = probe->acceptor_said = true;
  end_probe();
}

void Broker::end_probe() {
  if (std::all_of(round_->probes.begin(), round_->probes.end(),
                  [](const PairProbe& probe) { return probe.dialler_said && probe.acceptor_said; }))
    end_round();
}

void Broker::end_round() {
  for (const PairProbe& probe : round_->probes) {
    out_->effects.push_back(RevokeRelay{probe.ticket});
    if (!probe.dialler_said) resting_[probe.dials] = now_.monotonic + kRest;
    if (!probe.acceptor_said) resting_[probe.accepts] = now_.monotonic + kRest;
  }
  round_.reset();
  probes_dirty_ = jobs_dirty_ = true;
}

// Somebody waits at the relay for the other end of a probe.
void Broker::invite_to_probe(const proto::Secret& ticket) {
  if (!round_) return;
  for (const PairProbe& probe : round_->probes)
    if (probe.ticket == ticket && !probe.acceptor_said)
      send_to_peer(probe.accepts, proto::RelayInvitation{.run = 0, .plan_version = 0, .ticket = ticket});
}

// What came of a step over a link that somebody has measured: what goes on otherwise than that is believed.
void Broker::observe_links(const Peer& peer, const proto::StepReport& report) {
  if (!options_.measures_links || !report.updated || peer.serving != report.run) return;
  const auto& plan = jobs_.at(report.run).plan;
  for (const proto::LinkUse& use : report.links) {
    const auto other = plan ? plan->find(use.seat) : std::nullopt;
    if (!other || use.bytes_timed == 0 || !(use.seconds_timed > 0)) continue;
    const double usual =
        std::clamp(static_cast<double>(use.bytes_timed) / use.seconds_timed, kRateMin, kRateMax);
    links_.observe(plan->stages[*other].peer, peer.id,
                   {.usual = usual, .fastest = std::clamp(use.fastest_bytes_per_second, usual, kRateMax)},
                   now_.monotonic);
  }
}

// ---- what comes of it
// --------------------------------------------------------------------------------------------

// A plan is made once all is known of the links, or it has been waited for long enough.
bool Broker::waits_for_links(Job& job, const std::vector<Candidate>& free) {
  if (!options_.measures_links) return false;
  std::vector<PeerId> peers;
  for (const Candidate& candidate : free)
    if (may_probe(peers_.at(candidate.peer))) peers.push_back(candidate.peer);
  // Of a pair that is under way only one direction may be known.
  const bool under_way = round_ && std::any_of(peers.begin(), peers.end(), [&](const PeerId& peer) {
                           const PairProbe* probe = probe_of(peer);
                           return probe != nullptr && !(probe->dialler_said && probe->acceptor_said);
                         });
  if (!under_way && !links_.wants_more(peers, now_.monotonic)) return false;
  if (!job.measuring_since) job.measuring_since = now_.monotonic;
  if (now_.monotonic - *job.measuring_since >= options_.measuring_max) return false;
  set_state(job, proto::JobState::Waiting,
            "the links between " + std::to_string(peers.size()) + " peers are being measured");
  probes_dirty_ = true;
  return true;
}

plan::ClusterView Broker::cluster_of(const std::vector<Candidate>& candidates) const {
  if (!options_.measures_links) return assumed_cluster(candidates);
  std::vector<PeerId> peers;
  for (const Candidate& candidate : candidates) peers.push_back(candidate.peer);
  return links_.cluster(device_views(candidates), peers, now_.monotonic);
}

namespace {
proto::LinkFigure figure_of(size_t from, size_t to, const plan::LinkView& link) {
  return {.from = static_cast<uint32_t>(from),
          .to = static_cast<uint32_t>(to),
          .bytes_per_second = std::clamp(link.bytes_per_second, 1.0, 1e18),
          .latency = link.latency,
          .assumed = link.is_assumed};
}
double line_of(double rate) { return rate == plan::kUnlimited ? 0 : rate; }
}  // namespace

// Of those that are there.
proto::LinkList Broker::list_links() const {
  std::vector<Candidate> present;
  for (const auto& [id, peer] : peers_)
    if (peer.connection && !peer.other_version) present.push_back({id, peer.name, peer.device});
  const plan::ClusterView cluster = cluster_of(present);
  proto::LinkList list;
  for (size_t i = 0; i < present.size(); ++i) {
    const plan::DeviceView& device = cluster.devices()[i];
    list.ends.push_back({.peer = present[i].peer,
                         .name = present[i].name,
                         .region = device.region,
                         .site = device.site,
                         .uplink = line_of(device.uplink),
                         .downlink = line_of(device.downlink)});
  }
  const uint32_t sites = cluster.site_count() <= kSitesListed ? cluster.site_count() : 0;
  for (uint32_t from = 0; from < sites; ++from)
    for (uint32_t to = 0; to < sites; ++to)
      list.between.push_back(figure_of(from, to, cluster.between(from, to)));
  if (present.size() <= kEndsWithPairs) list_pairs(cluster, list);
  return list;
}

void Broker::list_pairs(const plan::ClusterView& cluster, proto::LinkList& list) const {
  for (size_t from = 0; from < list.ends.size(); ++from)
    for (size_t to = 0; to < list.ends.size(); ++to) {
      if (from == to) continue;
      proto::LinkFigure figure = figure_of(from, to, cluster.path(from, to));
      if (const auto sample = links_.find(list.ends[from].peer, list.ends[to].peer)) {
        figure.relayed = sample->is_relayed;
        figure.seconds_since = std::max(seconds(now_.monotonic - sample->at), 0.0);
      } else {
        figure.assumed = true;  // if only by what is known of others
      }
      list.links.push_back(figure);
    }
}

}  // namespace weft::broker
