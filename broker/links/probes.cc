#include "broker/links/probes.h"

#include <algorithm>
#include <cstdio>

#include "broker/pool/candidates.h"

namespace weft::broker {

namespace {
constexpr uint64_t kBytesMax = 16 << 20;  // each way
constexpr Duration kTimeMax = std::chrono::milliseconds(1200);
constexpr Duration kProbeDeadline = std::chrono::seconds(15);
constexpr Duration kRoundDeadline = std::chrono::seconds(17);
// Who did not answer, or had something else to do, is not asked again for so long; who was given a stage may
// answer beside it.
constexpr Duration kRest = std::chrono::seconds(30), kRestOfTheAssigned = std::chrono::seconds(1);
// Beyond these nobody is believed.
constexpr double kRateMin = 1e3, kRateMax = 125e9;
constexpr Duration kRoundTripMax = std::chrono::seconds(60);
constexpr size_t kEndsWithPairs = 64;  // of more peers sites alone are listed
constexpr uint32_t kSitesListed = 256;
}  // namespace

bool Probes::may_probe(const Peer& peer) const {
  if (!peer.connection || peer.draining || peer.minor < proto::kProtocolMinorOfProbes) return false;
  const auto resting = resting_.find(peer.id);
  return resting == resting_.end() || resting->second <= step_.now.monotonic;
}

// Nothing disturbs a measurement: no run, and no tensors that are fetched for one.
std::vector<PeerId> Probes::idle_peers() const {
  std::vector<PeerId> idle;
  for (const auto& [id, peer] : pool_.peers())
    if (may_probe(peer) && peer.is_idle() && !stand_bys_.is_fetching(id)) idle.push_back(id);
  return idle;
}

// Those of runs that take more replicas when they come: what lies between them and whoever came is measured
// although they work. It takes a second, and their lines are idle between two agreements.
std::vector<PeerId> Probes::growing_peers() const {
  std::vector<PeerId> growing;
  for (const auto& [number, job] : book_.jobs()) {
    const phase::Running* at = job.running();
    if (at == nullptr || at->over) continue;
    const PlannedRun& plan = *at->crew.plan;
    if (plan.replicas_max <= at->run->inner().replicas() - at->run->absence().replicas().size()) continue;
    for (const PlannedStage& stage : plan.stages)
      if (const Peer* peer = pool_.find(stage.peer); peer != nullptr && may_probe(*peer) &&
                                                     peer->stages.size() == 1 &&
                                                     peer->minor >= proto::kProtocolMinorOfProbesAtWork)
        growing.push_back(stage.peer);
  }
  return growing;
}

void Probes::update() {
  step_.probes = false;
  if (!options_.measures_links) return;
  if (round_ && step_.now.monotonic >= round_->deadline) end_round();
  if (round_) return;
  std::erase_if(resting_, [&](const auto& entry) { return entry.second <= step_.now.monotonic; });
  const std::vector<PeerId> idle = idle_peers();
  std::vector<LinkBook::Pair> pairs;
  if (std::vector<PeerId> all = idle.empty() ? idle : growing_peers(); !all.empty()) {
    all.insert(all.end(), idle.begin(), idle.end());
    pairs = links_.missing_round(all, places_of(all));
  }
  if (pairs.empty()) pairs = links_.next_round(idle, step_.now.monotonic, places_of(idle));
  if (!pairs.empty()) start_round(pairs);
}

std::vector<Place> Probes::places_of(const std::vector<PeerId>& peers) const {
  std::vector<Place> places;
  for (const PeerId& id : peers) {
    const Peer& peer = pool_.at(id);
    places.push_back({.region = peer.device.region, .host = std::string(host_of(peer.address))});
  }
  return places;
}

void Probes::start_round(const std::vector<LinkBook::Pair>& pairs) {
  round_ = Round{.number = ++rounds_, .deadline = step_.now.monotonic + kRoundDeadline, .pairs = {}};
  for (const LinkBook::Pair& pair : pairs) {
    Pair probe{.dials = pair.dials, .accepts = pair.accepts, .ticket = options_.draw_secret()};
    // Who cannot be dialled dials.
    if (pool_.at(probe.accepts).device.addresses.empty() && !pool_.at(probe.dials).device.addresses.empty())
      std::swap(probe.dials, probe.accepts);
    step_.effect(GrantRelay{probe.ticket});
    tell(probe, probe.accepts, probe.dials);
    tell(probe, probe.dials, probe.accepts);
    round_->pairs.push_back(probe);
  }
}

void Probes::tell(const Pair& probe, const PeerId& to, const PeerId& other) {
  const proto::DeviceReport& device = pool_.at(other).device;
  pool_.send(to, proto::ProbeLink{.round = round_->number,
                                  .peer = other,
                                  .dials = to == probe.dials,
                                  .addresses = device.addresses,
                                  .relay_ticket = probe.ticket,
                                  .region = device.region,
                                  .bytes_max = kBytesMax,
                                  .time_max = kTimeMax,
                                  .deadline = kProbeDeadline});
}

Probes::Pair* Probes::pair_of(const PeerId& peer) {
  if (!round_) return nullptr;
  for (Pair& probe : round_->pairs)
    if (probe.dials == peer || probe.accepts == peer) return &probe;
  return nullptr;
}

void Probes::on_report(Peer& peer, const proto::ProbeReport& report) {
  Pair* probe = round_ && round_->number == report.round ? pair_of(peer.id) : nullptr;
  const bool dialled = probe != nullptr && probe->dials == peer.id;
  if (probe == nullptr || report.peer != (dialled ? probe->accepts : probe->dials) ||
      (dialled ? probe->dialler_said : probe->acceptor_said)) {
    ++step_.counters.stale_dropped;
    return;
  }
  (dialled ? probe->dialler_said : probe->acceptor_said) = true;
  probe->measured = probe->measured || !report.failure;
  if (dialled && !report.failure) note_dialled(probe->accepts, !report.relayed);
  if (report.failure)
    on_failed(*probe, peer, *report.failure);
  else
    on_measured({.from = report.peer,
                 .to = peer.id,
                 .bytes_per_second = std::clamp(report.bytes_per_second, kRateMin, kRateMax),
                 .round_trip = std::min(report.round_trip, kRoundTripMax),
                 .is_relayed = report.relayed,
                 .at = step_.now.monotonic});
  end_pair();
}

void Probes::on_measured(const LinkSample& sample) {
  char figures[80];
  std::snprintf(figures, sizeof figures, "mbit_per_second=%.3g round_trip_ms=%.3g",
                sample.bytes_per_second * 8e-6, seconds(sample.round_trip) * 1e3);
  step_.log("info link_measured from=" + pool_.at(sample.from).name + " to=" + pool_.at(sample.to).name +
            " " + figures + (sample.is_relayed ? " way=relay" : " way=direct"));
  links_.record(sample);
}

// Who dials has tried every way; who waits cannot tell why nobody came.
void Probes::on_failed(Pair& probe, const Peer& peer, const Error& error) {
  const PeerId& other = peer.id == probe.dials ? probe.accepts : probe.dials;
  step_.log("warning link_not_measured round=" + std::to_string(round_->number) + " peer=" + peer.name +
            " other=" + pool_.at(other).name + " reason=\"" + error.message + "\"");
  const bool is_no_way = error.code == ErrorCode::Unavailable || error.code == ErrorCode::Timeout;
  if (is_no_way && peer.id == probe.accepts) return;
  if (is_no_way) note_dialled(other, /*answered=*/false);
  if (is_no_way && !probe.measured) {
    links_.record({.from = peer.id, .to = other, .at = step_.now.monotonic});
    links_.record({.from = other, .to = peer.id, .at = step_.now.monotonic});
  } else {
    resting_[peer.id] = resting_[other] =
        step_.now.monotonic + (error.code == ErrorCode::Cancelled ? kRestOfTheAssigned : kRest);
  }
  probe.dialler_said = probe.acceptor_said = true;
}

// Of a peer that has gone nothing is waited for.
void Probes::drop(const PeerId& peer) {
  Pair* probe = pair_of(peer);
  if (probe == nullptr) return;
  probe->dialler_said = probe->acceptor_said = true;
  end_pair();
}

void Probes::end_pair() {
  if (std::all_of(round_->pairs.begin(), round_->pairs.end(),
                  [](const Pair& probe) { return probe.dialler_said && probe.acceptor_said; }))
    end_round();
}

void Probes::end_round() {
  for (const Pair& probe : round_->pairs) {
    step_.effect(RevokeRelay{probe.ticket});
    if (!probe.dialler_said) resting_[probe.dials] = step_.now.monotonic + kRest;
    if (!probe.acceptor_said) resting_[probe.accepts] = step_.now.monotonic + kRest;
  }
  round_.reset();
  step_.probes = step_.jobs = true;
}

// Somebody waits at the relay for the other end of a probe.
void Probes::on_relay_waiting(const proto::Secret& ticket) {
  if (!round_) return;
  for (const Pair& probe : round_->pairs)
    if (probe.ticket == ticket && !probe.acceptor_said)
      pool_.send(probe.accepts, proto::RelayInvitation{.run = 0, .plan_version = 0, .ticket = ticket});
}

void Probes::forget_links(const PeerId& peer) {
  links_.forget(peer);
  std::erase_if(ways_,
                [&](const auto& entry) { return entry.first.first == peer || entry.first.second == peer; });
}

// Who has no address was not dialled there.
void Probes::note_dialled(const PeerId& dialled, bool answered) {
  Peer* peer = pool_.find(dialled);
  if (peer == nullptr || peer->device.addresses.empty() || peer->was_dialled == answered) return;
  peer->was_dialled = answered;
  step_.peers = true;
  if (!answered)
    step_.log("warning peer_not_reached peer=" + peer->name + " address=" + peer->device.addresses.front() +
              " reason=\"its port did not answer another peer: its tensors go through this broker\"");
}

// How tensors go now, and what that says of the address of who was dialled.
void Probes::note_ways(const Peer& peer, const proto::StepReport& report) {
  const Job* job = book_.find(report.run);
  const Crew* crew = job != nullptr ? job->crew() : nullptr;
  const auto stage = crew != nullptr ? crew->stage_of(peer.id) : std::nullopt;
  if (!stage) return;
  for (const proto::LinkUse& use : report.links) {
    const auto other = crew->plan->find(use.seat);
    if (!other || use.way == proto::LinkWay::Unsaid) continue;
    const PeerId& to = crew->plan->stages[*other].peer;
    const bool is_relayed = use.way == proto::LinkWay::Relay;
    ways_[{peer.id, to}] = {is_relayed, report.run, step_.now.monotonic};
    for (const proto::LinkRoute& route : crew->plan->stages[*stage].assignment->links)
      if (route.seat == use.seat && route.dials && !route.addresses.empty()) note_dialled(to, !is_relayed);
  }
}

bool Probes::is_used(const PeerId& from, const PeerId& to, const Way& way) const {
  const Peer *one = pool_.find(from), *other = pool_.find(to);
  return one != nullptr && other != nullptr && one->works_on(way.job) && other->works_on(way.job);
}

// What came of a step over a link that somebody has measured: what goes on otherwise than that is believed.
void Probes::observe(const Peer& peer, const proto::StepReport& report) {
  if (report.updated && peer.works_on(report.run)) note_ways(peer, report);
  if (!options_.measures_links || !report.updated || !peer.works_on(report.run)) return;
  const Job* job = book_.find(report.run);
  const Crew* crew = job != nullptr ? job->crew() : nullptr;
  for (const proto::LinkUse& use : report.links) {
    const auto other = crew != nullptr ? crew->plan->find(use.seat) : std::nullopt;
    if (!other || use.bytes_timed == 0 || !(use.seconds_timed > 0)) continue;
    const double usual =
        std::clamp(static_cast<double>(use.bytes_timed) / use.seconds_timed, kRateMin, kRateMax);
    links_.observe(crew->plan->stages[*other].peer, peer.id,
                   {.usual = usual, .fastest = std::clamp(use.fastest_bytes_per_second, usual, kRateMax)},
                   step_.now.monotonic);
  }
}

// ---- what comes of it

// A plan is made once all is known of the links, or it has been waited for long enough.
bool Probes::waits_for(Job& job, const std::vector<Candidate>& free) {
  if (!options_.measures_links) return false;
  std::vector<PeerId> peers;
  for (const Candidate& candidate : free)
    if (may_probe(pool_.at(candidate.peer))) peers.push_back(candidate.peer);
  // Of a pair that is under way only one direction may be known.
  const bool under_way = round_ && std::any_of(peers.begin(), peers.end(), [&](const PeerId& peer) {
                           const Pair* probe = pair_of(peer);
                           return probe != nullptr && !(probe->dialler_said && probe->acceptor_said);
                         });
  if (!under_way && !links_.wants_more(peers, step_.now.monotonic, places_of(peers))) return false;
  std::optional<Instant>& since = job.waiting()->measuring_since;
  if (!since) since = step_.now.monotonic;
  if (step_.now.monotonic - *since >= options_.measuring_max) return false;
  book_.set_state(job, proto::JobState::Waiting,
                  "the links between " + std::to_string(peers.size()) + " peers are being measured");
  step_.probes = true;
  return true;
}

bool Probes::is_known(const PeerId& peer, const std::vector<Candidate>& among) const {
  const auto carries = [&](const PeerId& from, const PeerId& to) {
    const auto sample = links_.find(from, to);
    return sample && sample->bytes_per_second > 0;
  };
  return std::any_of(among.begin(), among.end(), [&](const Candidate& other) {
    return carries(peer, other.peer) && carries(other.peer, peer);
  });
}

plan::ClusterView Probes::cluster_of(const std::vector<Candidate>& candidates) const {
  if (!options_.measures_links) return assumed_cluster(candidates);
  std::vector<PeerId> peers;
  peers.reserve(candidates.size());
  for (const Candidate& candidate : candidates) peers.push_back(candidate.peer);
  return links_.cluster(device_views(candidates), peers, step_.now.monotonic);
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
proto::LinkList Probes::list() const {
  std::vector<Candidate> present;
  for (const auto& [id, peer] : pool_.peers())
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

void Probes::list_pairs(const plan::ClusterView& cluster, proto::LinkList& list) const {
  for (size_t from = 0; from < list.ends.size(); ++from)
    for (size_t to = 0; to < list.ends.size(); ++to) {
      if (from == to) continue;
      proto::LinkFigure figure = figure_of(from, to, cluster.path(from, to));
      if (const auto sample = links_.find(list.ends[from].peer, list.ends[to].peer)) {
        figure.relayed = sample->is_relayed;
        figure.seconds_since = std::max(seconds(step_.now.monotonic - sample->at), 0.0);
      } else {
        figure.assumed = true;  // if only by what is known of others
      }
      const auto way = ways_.find({list.ends[from].peer, list.ends[to].peer});
      if (way != ways_.end()) {
        figure.in_use = is_used(way->first.first, way->first.second, way->second);
        const double since = seconds(step_.now.monotonic - way->second.at);
        if (figure.assumed || since <= figure.seconds_since) figure.relayed = way->second.is_relayed;
      }
      list.links.push_back(figure);
    }
}

}  // namespace weft::broker
