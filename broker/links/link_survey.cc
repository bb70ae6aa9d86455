#include "broker/links/link_survey.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

namespace weft::broker {
namespace {

// So many comparisons place a peer, and so many make it likely that it stands somewhere.
constexpr uint32_t kEnough = 5, kSome = 2;

bool same_rates(const SiteLink& a, const SiteLink& b, const Tolerance& tolerance) {
  if (a.largest() == 0 || b.largest() == 0) return true;
  const double slack = 1 + tolerance.of_rate(std::max(a.least(), b.least()));
  return a.least() <= b.most() * slack && b.least() <= a.most() * slack;
}
bool same_ways(const SiteLink& a, const SiteLink& b, const Tolerance& tolerance) {
  if (a.is_relayed() != b.is_relayed()) return false;
  return !a.is_timed() || !b.is_timed() || tolerance.same_time(a.round_trip(), b.round_trip());
}

// What a peer, or a site, has to do with each site.
struct Row {
  std::vector<SiteLink> out, in;  // by site

  // The sites that say something, and the two nearest; without `self`, the row's own.
  struct Summary {
    std::vector<uint32_t> seen{};
    uint32_t nearest = kNowhere;
    double least = std::numeric_limits<double>::infinity(), second = least;  // round trips
  };
  Summary summary(uint32_t self = kNowhere) const;
};

Row::Summary Row::summary(uint32_t self) const {
  Summary found;
  for (uint32_t site = 0; site < out.size(); ++site) {
    if (site == self || !out[site].is_evidence()) continue;
    found.seen.push_back(site);
    if (!out[site].is_timed()) continue;
    const double round_trip = out[site].round_trip();
    if (round_trip < found.least) {
      found.second = std::exchange(found.least, round_trip);
      found.nearest = site;
    } else {
      found.second = std::min(found.second, round_trip);
    }
  }
  return found;
}

// How well two rows agree.
struct Likeness {
  uint32_t compared = 0, against = 0;
  double distance = 0;  // the sum of what their round trips differ by, of the longer one
  bool excluded = false;

  bool is_alike(uint32_t needed) const { return !excluded && compared >= needed && against * 10 <= compared; }
  bool operator<(const Likeness& other) const {
    const auto key = [](const Likeness& l) {
      return std::tuple(l.against, l.distance / std::max(l.compared, 1u));
    };
    return key(*this) < key(other);
  }
};

// Puts peers into sites: those of the core by merging whichever two are most alike, then each other peer
// where it fits or, if it was measured with all and fits nowhere, to a site of its own.
class Grouping {
 public:
  Grouping(const Survey& survey, Tolerance tolerance, uint32_t most, bool is_last)
      : survey_(survey),
        tolerance_(tolerance),
        most_(most),
        is_last_(is_last),
        site_of_(survey.peers(), kNowhere),
        likely_(survey.peers()) {}

  // False: there would be more sites than may be.
  bool run() {
    for (const uint32_t peer : survey_.core)
      if (is_measured(peer)) found(peer);
    merge();
    // A site that was founded late may be where somebody belongs who came before.
    for (size_t before = survey_.peers() + 1; before != waiting();) {
      before = waiting();
      for (const uint32_t peer : best_known_first())
        if (!place(peer)) return false;
      merge();
    }
    for (const uint32_t peer : best_known_first()) guess(peer);
    return sites() <= most_ || is_last_;
  }
  void hand_over(Survey& survey) {
    survey.members.assign(sites(), {});
    for (uint32_t peer = 0; peer < site_of_.size(); ++peer)
      if (site_of_[peer] != kNowhere) survey.members[site_of_[peer]].push_back(peer);
    survey.site_of = std::move(site_of_);
    survey.likely = std::move(likely_);
    survey.table.clear();
    for (const Row& row : rows_) survey.table.insert(survey.table.end(), row.out.begin(), row.out.end());
  }

 private:
  // Peers that stand nowhere.
  size_t waiting() const {
    return static_cast<size_t>(std::count(site_of_.begin(), site_of_.end(), kNowhere));
  }
  uint32_t sites() const { return static_cast<uint32_t>(rows_.size()); }

  // A peer of the core counts once it was measured with half of the others.
  bool is_measured(uint32_t peer) const {
    uint32_t seen = 0;
    for (const uint32_t other : survey_.core) seen += survey_.find(peer, other) != nullptr;
    return seen > 0 && size_t{2} * seen >= survey_.core.size() - 1;
  }

  std::vector<uint32_t> best_known_first() const {
    std::vector<uint32_t> order;
    for (uint32_t peer = 0; peer < survey_.peers(); ++peer)
      if (site_of_[peer] == kNowhere && !survey_.partners(peer).empty()) order.push_back(peer);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return survey_.partners(a).size() > survey_.partners(b).size();
    });
    return order;
  }

  void add(SiteLink& link, const Partner& partner, const std::optional<double>& rate, double line) const {
    const RouteKind route = partner.route();
    if (route == RouteKind::None) {
      ++link.none;
      return;
    }
    SiteLink::Samples& samples = route == RouteKind::Relayed ? link.relayed : link.direct;
    ++samples.count;
    if (const auto round_trip = partner.round_trip()) samples.round_trips += *round_trip, ++samples.timed;
    if (!rate || *rate <= 0) return;
    samples.largest = std::max(samples.largest, *rate);
    if (*rate < line * (1 - tolerance_.of_rate(*rate))) samples.own += *rate, ++samples.owned;
  }
  void add_out(SiteLink& link, uint32_t peer, const Partner& to) const {
    add(link, to, to.out.rate, std::min(survey_.uplink[peer], survey_.downlink[to.peer]));
  }
  void add_in(SiteLink& link, uint32_t peer, const Partner& from) const {
    add(link, from, from.in.rate, std::min(survey_.uplink[from.peer], survey_.downlink[peer]));
  }

  const Row& row_of(uint32_t peer) {
    Row& row = row_of_one_;
    row.out.assign(sites(), {});
    row.in.assign(sites(), {});
    for (const Partner& partner : survey_.partners(peer))
      if (const uint32_t site = site_of_[partner.peer]; site != kNowhere) {
        add_out(row.out[site], peer, partner);
        add_in(row.in[site], peer, partner);
      }
    return row;
  }

  // `self`: the row's own site, kNowhere if it is a peer's.
  Likeness likeness(const Row& row, const Row::Summary& summary, uint32_t self, uint32_t site) const {
    Likeness found;
    const SiteLink& there = row.out[site];
    const SiteLink& within = rows_[site].out[site];
    compare_within(there, within, found);
    compare_within(row.in[site], within, found);
    if (self != kNowhere)
      for (const SiteLink* link : {&within, &there, &row.in[site]})
        compare_within(row.out[self], *link, found);
    if (!is_nearest(summary, there, site)) found.excluded = true;
    for (const uint32_t other : summary.seen) {
      if (found.excluded || size_t{10} * found.against > summary.seen.size() + 1) return found;
      if (other != site)
        compare(row.out[other], rows_[site].out[other], row.in[other], rows_[site].in[other], found);
    }
    return found;
  }
  void compare(const SiteLink& a_out, const SiteLink& b_out, const SiteLink& a_in, const SiteLink& b_in,
               Likeness& found) const {
    if (!a_out.is_evidence() || !b_out.is_evidence()) return;
    ++found.compared;
    found.against += !same_ways(a_out, b_out, tolerance_) || !same_rates(a_out, b_out, tolerance_) ||
                     !same_rates(a_in, b_in, tolerance_);
    if (a_out.is_timed() && b_out.is_timed()) {
      const double longer = std::max(a_out.round_trip(), b_out.round_trip()) + tolerance_.seconds;
      found.distance += std::abs(a_out.round_trip() - b_out.round_trip()) / longer;
    }
  }
  void compare_within(const SiteLink& a, const SiteLink& b, Likeness& found) const {
    if (!a.is_evidence() || !b.is_evidence()) return;
    found.compared = 1;
    if (!same_ways(a, b, tolerance_) || !same_rates(a, b, tolerance_)) found.excluded = true;
  }
  // Peers of one site are not clearly nearer to another site than to each other.
  bool is_nearest(const Row::Summary& summary, const SiteLink& there, uint32_t site) const {
    if (!there.is_timed() || there.is_relayed()) return true;
    const double nearest = summary.nearest == site ? summary.second : summary.least;
    return nearest >= there.round_trip() || tolerance_.same_time(nearest, there.round_trip());
  }

  // The two sites that are most alike become one until no two are alike.
  void merge() {
    for (;;) {
      std::optional<std::pair<uint32_t, uint32_t>> best;
      Likeness least;
      const uint32_t needed = std::min(2u, std::max(sites(), 3u) - 2);
      for (uint32_t b = 1; b < sites(); ++b) {
        const Row::Summary summary = rows_[b].summary(b);
        for (uint32_t a = 0; a < b; ++a)
          if (const Likeness now = likeness(rows_[b], summary, b, a);
              now.is_alike(needed) && (!best || now < least))
            best.emplace(a, b), least = now;
      }
      if (!best) return;
      merge(best->first, best->second);
    }
  }
  void merge(uint32_t into, uint32_t site) {
    for (uint32_t other = 0; other < sites(); ++other) {
      if (other == into || other == site) continue;
      rows_[into].out[other].add(rows_[site].out[other]);
      rows_[into].in[other].add(rows_[site].in[other]);
      rows_[other].in[into] = rows_[into].out[other];
      rows_[other].out[into] = rows_[into].in[other];
    }
    SiteLink within = rows_[into].out[into];
    for (const SiteLink* more : {&rows_[into].out[site], &rows_[into].in[site], &rows_[site].out[site]})
      within.add(*more);
    rows_[into].out[into] = rows_[into].in[into] = within;
    rows_.erase(rows_.begin() + site);
    for (Row& row : rows_) {
      row.out.erase(row.out.begin() + site);
      row.in.erase(row.in.begin() + site);
    }
    const auto renumber = [&](uint32_t& of) {
      if (of != kNowhere && of >= site) of = of == site ? into : of - 1;
    };
    std::for_each(site_of_.begin(), site_of_.end(), renumber);
    for (std::vector<uint32_t>& likely : likely_) std::for_each(likely.begin(), likely.end(), renumber);
  }

  // False: there is no room for another site.
  bool place(uint32_t peer) {
    const Row& row = row_of(peer);
    const Row::Summary summary = row.summary();
    const bool is_complete =
        std::all_of(row.out.begin(), row.out.end(), [](const SiteLink& l) { return l.samples() > 0; });
    const uint32_t needed = is_complete ? 1 : std::clamp(sites() - 1, 1u, kEnough);
    if (!is_complete && summary.seen.size() < needed) return true;
    // Most stand at the site that they are nearest to: then there is no need to look at the others.
    if (const uint32_t nearest = summary.nearest; nearest != kNowhere)
      if (const Likeness how = likeness(row, summary, kNowhere, nearest);
          how.against == 0 && how.is_alike(needed)) {
        join(peer, nearest);
        return true;
      }
    return place_by_likeness(peer, row, summary, needed, is_complete);
  }
  bool place_by_likeness(uint32_t peer, const Row& row, const Row::Summary& summary, uint32_t needed,
                         bool is_complete) {
    for (const auto& [how, site] : choices(row, summary)) {
      if (!how.is_alike(needed)) continue;
      join(peer, site);
      if (row.out[site].samples() == 0) likely_[peer].push_back(site);
      return true;
    }
    if (is_complete && sites() < std::max(most_, kCore)) {
      found(peer);
      return true;
    }
    return !is_complete || is_last_;
  }
  // Sites that nothing speaks against, the most alike first.
  std::vector<std::pair<Likeness, uint32_t>> choices(const Row& row, const Row::Summary& summary) const {
    std::vector<std::pair<Likeness, uint32_t>> choices;
    for (uint32_t site = 0; site < sites(); ++site)
      if (const Likeness how = likeness(row, summary, kNowhere, site); how.is_alike(0))
        choices.emplace_back(how, site);
    std::sort(choices.begin(), choices.end());
    return choices;
  }
  void guess(uint32_t peer) {
    const Row& row = row_of(peer);
    for (const auto& [how, site] : choices(row, row.summary()))
      if (how.compared >= kSome) likely_[peer].push_back(site);
  }
  void found(uint32_t peer) {
    const uint32_t site = sites();
    for (Row& row : rows_) row.out.emplace_back(), row.in.emplace_back();
    rows_.push_back({std::vector<SiteLink>(site + 1), std::vector<SiteLink>(site + 1)});
    join(peer, site);
  }
  void join(uint32_t peer, uint32_t site) {
    for (const Partner& partner : survey_.partners(peer)) {
      const uint32_t other = site_of_[partner.peer];
      if (other == kNowhere) continue;
      add_out(rows_[site].out[other], peer, partner);
      add_in(rows_[site].in[other], peer, partner);
      if (other == site) {
        add_in(rows_[site].out[site], peer, partner);
        rows_[site].in[site] = rows_[site].out[site];
      } else {
        rows_[other].in[site] = rows_[site].out[other];
        rows_[other].out[site] = rows_[site].in[other];
      }
    }
    site_of_[peer] = site;
  }

  const Survey& survey_;
  const Tolerance tolerance_;
  const uint32_t most_;
  const bool is_last_;
  std::vector<Row> rows_{};  // by site
  Row row_of_one_{};         // room for a peer's
  std::vector<uint32_t> site_of_;
  std::vector<std::vector<uint32_t>> likely_;
};

// Of `among` the peers that were measured most with each other.
std::vector<uint32_t> find_core(const Survey& survey, std::vector<uint32_t> among) {
  const size_t count = std::min<size_t>(kCore, among.size());
  std::vector<uint32_t> core, within(survey.peers(), 0);
  while (core.size() < count) {
    const auto rank = [&](uint32_t peer) { return std::pair(within[peer], survey.partners(peer).size()); };
    const auto best = std::max_element(among.begin(), among.end(),
                                       [&](uint32_t a, uint32_t b) { return rank(a) < rank(b); });
    core.push_back(*best);
    for (const Partner& partner : survey.partners(*best)) ++within[partner.peer];
    among.erase(best);
  }
  std::sort(core.begin(), core.end());
  return core;
}

// Where nobody of those who are asked about belongs to it, they are a core of their own once they were
// measured with each other: those who were measured before may be gone for good.
std::vector<uint32_t> find_core(const Survey& survey, std::span<const uint32_t> asked) {
  std::vector<uint32_t> all(survey.peers());
  std::iota(all.begin(), all.end(), 0u);
  std::vector<uint32_t> core = find_core(survey, std::move(all));
  const auto is_asked = [&](uint32_t peer) {
    return std::find(asked.begin(), asked.end(), peer) != asked.end();
  };
  if (std::any_of(core.begin(), core.end(), is_asked)) return core;
  std::vector<uint32_t> own = find_core(survey, std::vector<uint32_t>(asked.begin(), asked.end()));
  const size_t pairs = own.size() * (own.size() - (own.empty() ? 0 : 1)) / 2;
  const size_t wanted = asked.size() <= kCore ? pairs : pairs / 2;
  return pairs > 0 && survey.known_pairs(own) >= wanted ? own : core;
}

}  // namespace

bool Tolerance::same_time(double a, double b) const {
  return std::abs(a - b) <= std::max(seconds, share * std::max(a, b));
}

RouteKind Partner::route() const {
  if (out.rate.value_or(0) > 0) return out.is_relayed ? RouteKind::Relayed : RouteKind::Direct;
  if (in.rate.value_or(0) > 0) return in.is_relayed ? RouteKind::Relayed : RouteKind::Direct;
  return RouteKind::None;
}
std::optional<double> Partner::round_trip() const {
  if (!out.round_trip || !in.round_trip) return out.round_trip ? out.round_trip : in.round_trip;
  return std::min(*out.round_trip, *in.round_trip);
}
Instant Partner::at() const {
  if (!out.rate || !in.rate) return out.rate ? out.at : in.at;
  return std::min(out.at, in.at);
}

void SiteLink::Samples::add(const Samples& other) {
  count += other.count;
  timed += other.timed;
  round_trips += other.round_trips;
  largest = std::max(largest, other.largest);
  owned += other.owned;
  own += other.own;
}
void SiteLink::add(const SiteLink& other) {
  direct.add(other.direct);
  relayed.add(other.relayed);
  none += other.none;
}

uint32_t sites_max(size_t peers) {
  return std::max(kCore, static_cast<uint32_t>(2 * std::sqrt(static_cast<double>(peers))));
}

double line_of(std::vector<double>& rates) {
  std::erase_if(rates, [](double rate) { return rate <= 0; });
  if (rates.empty()) return 0;
  std::sort(rates.begin(), rates.end());
  const double least = rates.back() * (1 - Tolerance{}.of_rate(rates.back()) * 2 / 3);
  const auto first = std::lower_bound(rates.begin(), rates.end(), least);
  return first[(rates.end() - first) / 2];
}

Survey::Survey(const Partners& of, uint32_t peers, std::span<const uint32_t> asked)
    : known(&of), site_of(peers, kNowhere) {
  std::vector<double> out, in;
  for (uint32_t peer = 0; peer < peers; ++peer) {
    out.clear(), in.clear();
    for (const Partner& partner : partners(peer)) {
      out.push_back(partner.out.rate.value_or(0));
      in.push_back(partner.in.rate.value_or(0));
    }
    uplink.push_back(line_of(out));
    downlink.push_back(line_of(in));
  }
  core = find_core(*this, asked);
  for (Tolerance tolerance;; tolerance.share *= 2, tolerance.seconds *= 4) {
    const bool is_last = tolerance.share > 0.5;
    Grouping grouping(*this, tolerance, sites_max(peers), is_last);
    if (!grouping.run()) continue;
    grouping.hand_over(*this);
    return;
  }
}

size_t Survey::known_pairs(std::span<const uint32_t> of) const {
  size_t known = 0;
  for (const uint32_t a : of)
    for (const uint32_t b : of) {
      const Partner* partner = a < b ? find(a, b) : nullptr;
      known += partner != nullptr && partner->was_probed();
    }
  return known;
}
const std::vector<Partner>& Survey::partners(uint32_t peer) const {
  static const std::vector<Partner> kNone;
  return peer < known->size() ? (*known)[peer] : kNone;
}
const Partner* Survey::find(uint32_t peer, uint32_t other) const {
  const std::vector<Partner>& of = partners(peer);
  const auto at = std::lower_bound(of.begin(), of.end(), other,
                                   [](const Partner& p, uint32_t number) { return p.peer < number; });
  return at != of.end() && at->peer == other ? &*at : nullptr;
}

}  // namespace weft::broker
