#include "broker/link_book.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/check.h"
#include "broker/link_rounds.h"
#include "broker/link_view.h"

namespace weft::broker {
namespace {

// Faster than this is all one: no plan depends on it, and a short probe cannot tell.
constexpr double kFastest = 1.25e9;
constexpr Duration kLongest = std::chrono::minutes(1);  // of a round trip
constexpr size_t kDirectionsMax = 64;                   // kept of a peer; it is measured with fewer
// Traffic that is slower than nine tenths of what is believed so many times in a row is believed.
constexpr double kAsBelieved = 0.9;
constexpr uint32_t kSlowerMax = 4;
constexpr double kWeightOfOne = 0.25;

bool makes_sense(double bytes_per_second) { return std::isfinite(bytes_per_second) && bytes_per_second >= 0; }

// Both directions of each pair as one entry.
void merge_directions(std::vector<Partner>& of) {
  std::stable_sort(of.begin(), of.end(), [](const Partner& a, const Partner& b) { return a.peer < b.peer; });
  std::vector<Partner> merged;
  for (const Partner& half : of) {
    if (merged.empty() || merged.back().peer != half.peer) {
      merged.push_back(half);
      continue;
    }
    Partner& whole = merged.back();
    if (half.out) whole.out = half.out;
    if (half.in) whole.in = half.in;
    if (half.round_trip)
      whole.round_trip = std::min(*half.round_trip, whole.round_trip.value_or(*half.round_trip));
    whole.way = std::min(whole.way, half.way);
    whole.at = std::min(whole.at, half.at);
  }
  of = std::move(merged);
}

// Who cannot be dialled may be able to dial.
uint32_t relayed(const std::vector<Partner>& of) {
  return static_cast<uint32_t>(
      std::count_if(of.begin(), of.end(), [](const Partner& p) { return p.way == Way::Relayed; }));
}

}  // namespace

LinkBook::Direction& LinkBook::keep(const PeerId& from, const PeerId& to) {
  from_.try_emplace(to);
  Directions& directions = from_[from];
  if (directions.size() >= kDirectionsMax && !directions.contains(to))
    directions.erase(std::min_element(directions.begin(), directions.end(), [](const auto& a, const auto& b) {
      return a.second.at < b.second.at;
    }));
  return directions[to];
}

void LinkBook::record(const LinkSample& sample) {
  if (sample.from == sample.to || !makes_sense(sample.bytes_per_second) || sample.round_trip < Duration{})
    return;
  Direction& direction = keep(sample.from, sample.to);
  direction = {.bytes_per_second = std::min(sample.bytes_per_second, kFastest),
               .is_relayed = sample.is_relayed,
               .at = sample.at};
  if (direction.bytes_per_second > 0) direction.round_trip = std::min(sample.round_trip, kLongest);
}

void LinkBook::observe(PeerId from, PeerId to, double bytes_per_second, Instant now) {
  if (from == to || !makes_sense(bytes_per_second) || bytes_per_second == 0) return;
  Direction& direction = keep(from, to);
  const double rate = std::min(bytes_per_second, kFastest);
  direction.at = std::max(direction.at, now);
  if (rate >= kAsBelieved * direction.bytes_per_second) {
    direction.bytes_per_second = std::max(rate, direction.bytes_per_second);
    direction.slower = 0;
    return;
  }
  if (direction.slower++ == 0) direction.lately = direction.bytes_per_second;
  direction.lately += kWeightOfOne * (rate - direction.lately);
  if (direction.slower >= kSlowerMax) direction.bytes_per_second = direction.lately;
}

void LinkBook::forget(PeerId peer) {
  from_.erase(peer);
  for (auto& [from, directions] : from_) directions.erase(peer);
}

std::optional<LinkSample> LinkBook::find(const PeerId& from, const PeerId& to) const {
  const auto peer = from_.find(from);
  if (peer == from_.end()) return std::nullopt;
  const auto direction = peer->second.find(to);
  if (direction == peer->second.end()) return std::nullopt;
  return LinkSample{.from = from,
                    .to = to,
                    .bytes_per_second = direction->second.bytes_per_second,
                    .round_trip = direction->second.round_trip.value_or(Duration::zero()),
                    .is_relayed = direction->second.is_relayed,
                    .at = direction->second.at};
}

std::vector<PeerId> LinkBook::known_and(std::span<const PeerId> peers) const {
  std::vector<PeerId> ids(peers.begin(), peers.end());
  for (const auto& [peer, directions] : from_) ids.push_back(peer);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

Survey LinkBook::survey(const std::vector<PeerId>& ids) const {
  std::unordered_map<Digest, uint32_t> number;
  for (uint32_t i = 0; i < ids.size(); ++i) number[ids[i].digest] = i;
  Partners partners(ids.size());
  for (const auto& [from, directions] : from_)
    for (const auto& [to, seen] : directions) {
      const uint32_t a = number.at(from.digest), b = number.at(to.digest);
      Partner half{.peer = b, .way = seen.is_relayed ? Way::Relayed : Way::Direct, .at = seen.at};
      if (seen.bytes_per_second == 0) half.way = Way::None;
      if (seen.round_trip) half.round_trip = seconds(*seen.round_trip);
      half.out = seen.bytes_per_second;
      partners[a].push_back(half);
      half.peer = a;
      std::swap(half.out, half.in);
      partners[b].push_back(half);
    }
  for (std::vector<Partner>& of : partners) merge_directions(of);
  return Survey(std::move(partners));
}

std::vector<uint32_t> LinkBook::numbers(const std::vector<PeerId>& ids, std::span<const PeerId> peers) {
  std::vector<uint32_t> numbers;
  for (const PeerId& peer : peers)
    numbers.push_back(static_cast<uint32_t>(std::lower_bound(ids.begin(), ids.end(), peer) - ids.begin()));
  return numbers;
}

std::vector<LinkBook::Pair> LinkBook::next_round(std::span<const PeerId> idle, Instant now) const {
  const std::vector<PeerId> ids = known_and(idle);
  const Survey survey = this->survey(ids);
  std::vector<uint32_t> among = numbers(ids, idle);
  std::sort(among.begin(), among.end());
  among.erase(std::unique(among.begin(), among.end()), among.end());
  std::vector<NumberPair> chosen = pairs_to_measure(survey, among);
  if (chosen.empty()) chosen = pairs_to_repeat(survey, among, now);
  std::vector<Pair> round;
  for (auto [a, b] : chosen) {
    if (relayed(survey.partners[b]) > relayed(survey.partners[a])) std::swap(a, b);
    round.push_back({.dials = ids[a], .accepts = ids[b]});
  }
  return round;
}

bool LinkBook::wants_more(std::span<const PeerId> peers, Instant) const {
  const std::vector<PeerId> ids = known_and(peers);
  return !pairs_to_measure(survey(ids), numbers(ids, peers)).empty();
}

plan::ClusterView LinkBook::cluster(std::vector<plan::DeviceView> devices, std::span<const PeerId> peers,
                                    Instant) const {
  WEFT_CHECK(devices.size() == peers.size());
  const std::vector<PeerId> ids = known_and(peers);
  return view_links(survey(ids), std::move(devices), numbers(ids, peers));
}

}  // namespace weft::broker
