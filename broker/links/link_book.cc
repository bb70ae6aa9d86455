#include "broker/links/link_book.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "broker/links/link_view.h"

namespace weft::broker {
namespace {

// Faster than this is all one: no plan depends on it, and a short probe cannot tell.
constexpr double kFastest = 1.25e9;
constexpr Duration kLongest = std::chrono::minutes(1);  // of a round trip
constexpr size_t kPartnersMax = 64;                     // kept of a peer; it is measured with fewer
constexpr size_t kPeersMax = 4096;
// Traffic that differs by more than this from what is believed, so many times in a row, is believed.
constexpr double kAsBelieved = 0.1;
constexpr uint32_t kStreak = 4;
constexpr double kMuchSlower = 0.5;

// The clock's first instant where it has none that is as early.
Instant earlier(Instant at, Duration by) { return at < Instant::min() + by ? Instant::min() : at - by; }

bool makes_sense(double bytes_per_second) { return std::isfinite(bytes_per_second) && bytes_per_second >= 0; }

// Among partners, where the one with the number is or would be.
auto place_of(std::vector<Partner>& partners, uint32_t number) {
  return std::lower_bound(partners.begin(), partners.end(), number,
                          [](const Partner& partner, uint32_t n) { return partner.peer < n; });
}
Partner& entry_of(std::vector<Partner>& partners, uint32_t number) {
  const auto at = place_of(partners, number);
  if (at != partners.end() && at->peer == number) return *at;
  return *partners.insert(at, {.peer = number});
}

std::vector<uint32_t> each_once(std::vector<uint32_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

// The places of the peers with these numbers, of `among`.
std::vector<Place> in_order(std::span<const Place> places, const std::vector<uint32_t>& numbers,
                            const std::vector<uint32_t>& among) {
  std::vector<Place> ordered(places.empty() ? 0 : among.size());
  for (size_t i = 0; i < places.size(); ++i)
    ordered[static_cast<size_t>(std::lower_bound(among.begin(), among.end(), numbers[i]) - among.begin())] =
        places[i];
  return ordered;
}

// Who cannot be dialled may be able to dial.
size_t relayed(const std::vector<Partner>& of) {
  return static_cast<size_t>(
      std::count_if(of.begin(), of.end(), [](const Partner& p) { return p.route() == RouteKind::Relayed; }));
}

}  // namespace

// The peer of which nothing was heard for longest makes room for a new one.
void LinkBook::make_room(const PeerId& from, const PeerId& to) {
  if (numbers_.size() < kPeersMax || (numbers_.contains(from) && numbers_.contains(to))) return;
  const auto newest = [&](uint32_t peer) {
    if (ids_[peer] == from || ids_[peer] == to) return Instant::max();
    Instant at = Instant::min();
    for (const Partner& partner : partners_[peer]) at = std::max(at, partner.at());
    return at;
  };
  std::pair<Instant, uint32_t> oldest{newest(0), 0};
  for (uint32_t peer = 1; peer < ids_.size(); ++peer) oldest = std::min(oldest, {newest(peer), peer});
  forget(ids_[oldest.second]);
}

uint32_t LinkBook::number_of(const PeerId& peer) {
  const auto [at, is_new] = numbers_.try_emplace(peer, static_cast<uint32_t>(ids_.size()));
  if (is_new) {
    ids_.push_back(peer);
    partners_.emplace_back();
  }
  return at->second;
}

void LinkBook::set(uint32_t from, uint32_t to, const Seen& seen) {
  Seen& before = entry_of(partners_[from], to).out;
  const double now = seen.rate.value_or(0), then = before.rate.value_or(0);
  if (std::abs(now - then) > kAsBelieved * std::max(now, then)) ++version_;
  before = seen;
  entry_of(partners_[to], from).in = seen;
  for (const uint32_t peer : {from, to}) {
    const std::vector<Partner>& of = partners_[peer];
    if (of.size() <= kPartnersMax) continue;
    drop(peer, std::min_element(of.begin(), of.end(), [](const Partner& a, const Partner& b) {
                 return a.at() < b.at();
               })->peer);
  }
}
void LinkBook::drop(uint32_t a, uint32_t b) {
  partners_[a].erase(place_of(partners_[a], b));
  partners_[b].erase(place_of(partners_[b], a));
  forget_doubts({ids_[a], ids_[b]});
  forget_doubts({ids_[b], ids_[a]});
}

void LinkBook::record(const LinkSample& sample) {
  if (sample.from == sample.to || !makes_sense(sample.bytes_per_second) || sample.round_trip < Duration{})
    return;
  Seen seen{
      .rate = std::min(sample.bytes_per_second, kFastest), .is_relayed = sample.is_relayed, .at = sample.at};
  if (*seen.rate > 0) seen.round_trip = seconds(std::min(sample.round_trip, kLongest));
  forget_doubts({sample.from, sample.to});
  make_room(sample.from, sample.to);
  const uint32_t from = number_of(sample.from), to = number_of(sample.to);
  // What became slow may pass: it is measured again soon.
  if (const Seen& before = entry_of(partners_[from], to).out;
      *seen.rate < kMuchSlower * before.rate.value_or(0))
    seen.at = earlier(seen.at, kFreshFor - kRetryAfter);
  set(from, to, seen);
}

void LinkBook::observe(PeerId from, PeerId to, const LinkTraffic& traffic, Instant now) {
  if (from == to || !makes_sense(traffic.usual) || !makes_sense(traffic.fastest) || traffic.usual == 0 ||
      traffic.fastest == 0)
    return;
  make_room(from, to);
  const uint32_t a = number_of(from), b = number_of(to);
  const double usual = std::min(traffic.usual, kFastest), fastest = std::min(traffic.fastest, kFastest);
  const auto at = place_of(partners_[a], b);
  Seen seen = at != partners_[a].end() && at->peer == b ? at->out : Seen{};
  seen.at = std::max(seen.at, now);
  const double believed = seen.rate.value_or(0);
  const bool slower = fastest<(1 - kAsBelieved) * believed, faster = usual>(1 + kAsBelieved) * believed;
  if (believed == 0) {
    seen.rate = usual;  // nobody knew of a way
  } else if (!slower && !faster) {
    streaks_.erase({from, to});
  } else {
    Streak& streak = streaks_[{from, to}];
    if (streak.times == 0 || streak.slower != slower)
      streak = {.slower = slower, .rate = slower ? 0 : kFastest, .since = now};
    streak.rate = slower ? std::max(streak.rate, fastest) : std::min(streak.rate, usual);
    if (++streak.times >= kStreak) {
      seen.rate = streak.rate;
      const Instant since = streak.since;
      forget_doubts({from, to});
      set(a, b, seen);
      return slower ? became_slow(a, b, *seen.rate, since) : void();
    }
  }
  set(a, b, seen);
}

void LinkBook::forget_doubts(const Direction& pair) {
  streaks_.erase(pair);
  doubts_.erase(pair);
  slowed_.erase(pair);
}

void LinkBook::became_slow(uint32_t from, uint32_t to, double rate, Instant since) {
  const Direction because{ids_[from], ids_[to]};
  const bool others_too = std::any_of(slowed_.begin(), slowed_.end(), [&](const Direction& slow) {
    return slow.second == because.second && slow.first != because.first;
  });
  slowed_.insert(because);
  if (others_too) {
    believe_again(because.second);
    const std::vector<Partner> received = partners_[to];
    for (const Partner& other : received)
      if (other.peer != from) doubt(other.peer, to, because, rate, since);
  } else {
    const std::vector<Partner> sent = partners_[from];
    for (const Partner& other : sent)
      if (other.peer != to) doubt(from, other.peer, because, rate, since);
  }
}

void LinkBook::doubt(uint32_t from, uint32_t to, const Direction& because, double rate, Instant since) {
  const Seen before = entry_of(partners_[from], to).out;
  if (!before.rate || *before.rate <= rate || before.at >= since) return;
  const auto entry = doubts_.try_emplace({ids_[from], ids_[to]}, Doubt{before, because}).first;
  entry->second.because = because;
  Seen seen = before;
  seen.rate = rate;
  seen.at = std::min(seen.at, earlier(since, kFreshFor));
  set(from, to, seen);
}

// What sent to it was slow because of its downlink.
void LinkBook::believe_again(const PeerId& receiver) {
  for (auto at = doubts_.begin(); at != doubts_.end();) {
    if (at->second.because.second != receiver) {
      ++at;
      continue;
    }
    set(numbers_.at(at->first.first), numbers_.at(at->first.second), at->second.before);
    at = doubts_.erase(at);
  }
}

void LinkBook::forget(PeerId peer) {
  const auto found = numbers_.find(peer);
  if (found == numbers_.end()) return;
  const uint32_t gone = found->second;
  while (!partners_[gone].empty()) drop(gone, partners_[gone].back().peer);
  numbers_.erase(found);
  ids_.erase(ids_.begin() + gone);
  partners_.erase(partners_.begin() + gone);
  for (auto& [id, number] : numbers_) number -= number > gone;
  for (std::vector<Partner>& partners : partners_)
    for (Partner& partner : partners) partner.peer -= partner.peer > gone;
}

std::optional<LinkSample> LinkBook::find(const PeerId& from, const PeerId& to) const {
  const auto a = numbers_.find(from), b = numbers_.find(to);
  if (a == numbers_.end() || b == numbers_.end()) return std::nullopt;
  const std::vector<Partner>& partners = partners_[a->second];
  const auto at = std::lower_bound(partners.begin(), partners.end(), b->second,
                                   [](const Partner& partner, uint32_t peer) { return partner.peer < peer; });
  if (at == partners.end() || at->peer != b->second || !at->out.rate) return std::nullopt;
  return LinkSample{.from = from,
                    .to = to,
                    .bytes_per_second = *at->out.rate,
                    .round_trip = std::chrono::duration_cast<Duration>(
                        std::chrono::duration<double>(at->out.round_trip.value_or(0))),
                    .is_relayed = at->out.is_relayed,
                    .at = at->out.at};
}

std::vector<PeerId> LinkBook::known_and(std::span<const PeerId> peers) const {
  std::vector<PeerId> others;
  for (const PeerId& peer : peers)
    if (!numbers_.contains(peer)) others.push_back(peer);
  std::sort(others.begin(), others.end());
  others.erase(std::unique(others.begin(), others.end()), others.end());
  std::vector<PeerId> ids = ids_;
  ids.insert(ids.end(), others.begin(), others.end());
  return ids;
}
std::vector<uint32_t> LinkBook::numbers(const std::vector<PeerId>& ids, std::span<const PeerId> peers) const {
  const auto others = ids.begin() + static_cast<ptrdiff_t>(ids_.size());
  std::vector<uint32_t> numbers;
  for (const PeerId& peer : peers) {
    const auto known = numbers_.find(peer);
    numbers.push_back(known != numbers_.end()
                          ? known->second
                          : static_cast<uint32_t>(std::lower_bound(others, ids.end(), peer) - ids.begin()));
  }
  return numbers;
}

std::vector<LinkBook::Pair> LinkBook::next_round(std::span<const PeerId> idle, Instant now,
                                                 std::span<const Place> places) const {
  return pairs_of(idle, now, places);
}

std::vector<LinkBook::Pair> LinkBook::missing_round(std::span<const PeerId> peers,
                                                    std::span<const Place> places) const {
  return pairs_of(peers, std::nullopt, places);
}

std::vector<LinkBook::Pair> LinkBook::pairs_of(std::span<const PeerId> peers,
                                               std::optional<Instant> repeated_at,
                                               std::span<const Place> places) const {
  const std::vector<PeerId> ids = known_and(peers);
  const std::vector<uint32_t> among = each_once(numbers(ids, peers));
  const Survey survey(partners_, static_cast<uint32_t>(ids.size()), among);
  std::vector<NumberPair> chosen =
      pairs_to_measure(survey, ids, among, in_order(places, numbers(ids, peers), among));
  if (chosen.empty() && repeated_at) chosen = pairs_to_repeat(survey, among, *repeated_at);
  std::vector<Pair> round;
  for (auto [a, b] : chosen) {
    if (relayed(survey.partners(b)) > relayed(survey.partners(a))) std::swap(a, b);
    round.push_back({.dials = ids[a], .accepts = ids[b]});
  }
  return round;
}

bool LinkBook::wants_more(std::span<const PeerId> peers, Instant, std::span<const Place> places) const {
  const std::vector<PeerId> ids = known_and(peers);
  const std::vector<uint32_t> among = each_once(numbers(ids, peers));
  const Survey survey(partners_, static_cast<uint32_t>(ids.size()), among);
  return !pairs_to_measure(survey, ids, among, in_order(places, numbers(ids, peers), among)).empty();
}

plan::ClusterView LinkBook::cluster(std::vector<plan::DeviceView> devices, std::span<const PeerId> peers,
                                    Instant) const {
  WEFT_CHECK(devices.size() == peers.size());
  const std::vector<PeerId> ids = known_and(peers);
  const std::vector<uint32_t> among = numbers(ids, peers);
  const Survey survey(partners_, static_cast<uint32_t>(ids.size()), each_once(among));
  return view_links(survey, std::move(devices), among);
}

}  // namespace weft::broker
