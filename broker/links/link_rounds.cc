#include "broker/links/link_rounds.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <string_view>
#include <tuple>

namespace weft::broker {
namespace {

constexpr uint32_t kSeveral = 3;      // samples of every two sites
constexpr size_t kTops = 3;           // peers of a site with the fastest lines
constexpr size_t kTriesMax = 8;       // choices looked at for one peer in one round
constexpr double kClearlyMore = 1.3;  // of a line that shows what another can do

bool was_probed(const Partner* partner) { return partner != nullptr && partner->was_probed(); }

// Peers by what may still be learnt of one direction of their lines.
class Lines {
 public:
  Lines(const Survey& survey, bool is_up) : survey_(survey), is_up_(is_up) {
    limits_.resize(survey.peers());
    for (uint32_t peer = 0; peer < survey.peers(); ++peer) limits_[peer] = is_limit(peer);
  }

  // Whether more samples could show a faster line than what was seen of it.
  bool is_open(uint32_t peer, const Lines& others) const {
    if (survey_.site_of[peer] == kNowhere || limits_[peer]) return false;
    const double line = own(peer);
    uint32_t support = 0;
    for (const Partner& partner : survey_.partners(peer)) {
      const double rate = seen(partner);
      if (rate < line * 0.9 || rate <= 0) continue;
      const double path = most(peer, partner.peer);
      const bool others_limit = others.limits_[partner.peer] && rate > 0.87 * others.own(partner.peer);
      support += !others_limit && rate < 0.87 * path;
    }
    return support < kSeveral;
  }
  bool is_limit_known(uint32_t peer) const { return limits_[peer]; }
  double own(uint32_t peer) const { return is_up_ ? survey_.uplink[peer] : survey_.downlink[peer]; }
  // The most that may lie between the two in this direction.
  double most(uint32_t peer, uint32_t other) const {
    const SiteLink* between = link(survey_.site_of[peer], survey_.site_of[other]);
    return between == nullptr ? std::numeric_limits<double>::infinity() : between->most();
  }

 private:
  double seen(const Partner& partner) const { return (is_up_ ? partner.out : partner.in).rate.value_or(0); }
  double other_line(uint32_t peer) const { return is_up_ ? survey_.downlink[peer] : survey_.uplink[peer]; }
  const SiteLink* link(uint32_t site, uint32_t other) const {
    if (site == kNowhere || other == kNowhere) return nullptr;
    return is_up_ ? &survey_.between(site, other) : &survey_.between(other, site);
  }

  // Whether a sample was as slow as it was for the peer's own line: all else on its way is faster.
  bool is_limit(uint32_t peer) const {
    const double line = own(peer);
    for (const Partner& partner : survey_.partners(peer)) {
      const double rate = seen(partner);
      if (rate < line * 0.9 || rate <= 0 || other_line(partner.peer) < 1.15 * rate) continue;
      const SiteLink* between = link(survey_.site_of[peer], survey_.site_of[partner.peer]);
      if (between != nullptr && between->largest() > 1.15 * rate) return true;
    }
    return false;
  }

  const Survey& survey_;
  bool is_up_;
  std::vector<bool> limits_{};
};

class Round {
 public:
  Round(const Survey& survey, std::span<const PeerId> ids, std::span<const uint32_t> idle)
      : survey_(survey),
        ids_(ids),
        is_free_(survey.peers(), false),
        partners_max_(partners_max(survey.peers())) {
    for (const uint32_t peer : idle) is_free_[peer] = true;
    idle_.assign(idle.begin(), idle.end());
  }

  std::vector<NumberPair> run(std::span<const Place> said) {
    neighbours(said);
    core();
    if (survey_.peers() <= kCore) return std::move(pairs_);
    if (is_core_known()) {
      list_free();
      places();
      site_pairs();
      lines();
    } else if (pairs_.empty()) {  // it is busy
      among_themselves(idle_);
    }
    return std::move(pairs_);
  }

 private:
  bool take(uint32_t a, uint32_t b) {
    if (a == b || !is_free_[a] || !is_free_[b] || was_probed(survey_.find(a, b))) return false;
    is_free_[a] = is_free_[b] = false;
    pairs_.emplace_back(std::min(a, b), std::max(a, b));
    return true;
  }
  bool has_room(uint32_t peer) const { return survey_.partners(peer).size() < partners_max_; }

  // Those of one region and one host, then of one region, then of one host.
  void neighbours(std::span<const Place> places) {
    if (places.empty()) return;
    constexpr bool kBoth[][2] = {{true, true}, {true, false}, {false, true}};
    for (const auto& [by_region, by_host] : kBoth) {
      std::map<std::pair<std::string_view, std::string_view>, std::vector<uint32_t>> there;
      for (size_t i = 0; i < idle_.size(); ++i)
        if ((!by_region || !places[i].region.empty()) && (!by_host || !places[i].host.empty()))
          there[{by_region ? std::string_view(places[i].region) : "",
                 by_host ? std::string_view(places[i].host) : ""}]
              .push_back(idle_[i]);
      for (auto& [place, peers] : there) meet(std::move(peers));
    }
  }
  // Each with another of them, if it was with none.
  void meet(std::vector<uint32_t> peers) {
    std::sort(peers.begin(), peers.end(), [&](uint32_t a, uint32_t b) { return ids_[a] < ids_[b]; });
    std::vector<bool> is_here(survey_.peers(), false);
    for (const uint32_t peer : peers) is_here[peer] = true;
    const auto is_alone = [&](uint32_t peer) {
      const std::vector<Partner>& partners = survey_.partners(peer);
      return std::none_of(partners.begin(), partners.end(), [&](const Partner& partner) {
        return is_here[partner.peer] && partner.was_probed();
      });
    };
    std::vector<uint32_t> alone;
    std::copy_if(peers.begin(), peers.end(), std::back_inserter(alone), is_alone);
    for (size_t i = 0; i + 1 < alone.size(); i += 2) take(alone[i], alone[i + 1]);
    if (alone.size() % 2 == 0) return;
    for (const uint32_t other : peers)
      if (has_room(other) && take(alone.back(), other)) return;
  }

  void core() { all_pairs(survey_.core); }
  // As the rounds of a tournament, so that nobody waits while others are measured.
  void all_pairs(std::vector<uint32_t> peers) {
    const auto count = static_cast<uint32_t>(peers.size());
    if (count < 2) return;
    std::sort(peers.begin(), peers.end(), [&](uint32_t a, uint32_t b) { return ids_[a] < ids_[b]; });
    const uint32_t rounds = count - 1 + count % 2;
    std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> order;
    for (uint32_t a = 0; a < count; ++a)
      for (uint32_t b = a + 1; b < count; ++b)
        order.emplace_back((b == rounds ? 2 * a : a + b) % rounds, peers[a], peers[b]);
    std::sort(order.begin(), order.end());
    for (const auto& [round, a, b] : order) take(a, b);
  }
  bool is_core_known() const {
    return 4 * survey_.known_pairs(survey_.core) >= survey_.core.size() * (survey_.core.size() - 1);
  }

  // By site those that are free, least measured first.
  void list_free() {
    free_.resize(survey_.site_count());
    is_there_.resize(survey_.site_count(), false);
    for (const uint32_t peer : idle_) {
      const uint32_t site = survey_.site_of[peer];
      if (site == kNowhere || !has_room(peer)) continue;
      is_there_[site] = true;
      if (is_free_[peer]) free_[site].push_back(peer);
    }
    for (std::vector<uint32_t>& site : free_)
      std::sort(site.begin(), site.end(), [&](uint32_t a, uint32_t b) { return measured(a) > measured(b); });
  }
  std::pair<size_t, uint32_t> measured(uint32_t peer) const { return {survey_.partners(peer).size(), peer}; }

  // Peers that stand nowhere for sure, those first of which most is known: then they can help to place
  // others.
  void places() {
    std::vector<uint32_t> waiting;
    for (const uint32_t peer : idle_)
      if (is_free_[peer] && has_room(peer) &&
          (survey_.site_of[peer] == kNowhere || !survey_.likely[peer].empty()))
        waiting.push_back(peer);
    std::sort(waiting.begin(), waiting.end(), [&](uint32_t a, uint32_t b) {
      return std::pair(measured(b).first, a) < std::pair(measured(a).first, b);
    });
    std::vector<uint32_t> stranded;
    for (const uint32_t peer : waiting) {
      const std::vector<uint32_t> sites = sites_for(peer);
      for (const uint32_t site : sites)
        if (take_one_of(site, peer)) break;
      const auto is_there = [&](uint32_t site) { return is_there_[site]; };
      if (std::none_of(sites.begin(), sites.end(), is_there)) stranded.push_back(peer);
    }
    among_themselves(stranded);
  }
  // Peers that find nobody of the sites idle: at least they know each other.
  void among_themselves(std::vector<uint32_t> stranded) {
    std::sort(stranded.begin(), stranded.end(), [&](uint32_t a, uint32_t b) { return ids_[a] < ids_[b]; });
    for (size_t i = 0; i < stranded.size(); i += kCore)
      all_pairs({stranded.begin() + static_cast<ptrdiff_t>(i),
                 stranded.begin() + static_cast<ptrdiff_t>(std::min(stranded.size(), i + kCore))});
  }
  // Those that nobody measured it with: where it may stand first, then the others, each peer in another
  // order.
  std::vector<uint32_t> sites_for(uint32_t peer) const {
    const uint32_t count = survey_.site_count();
    std::vector<bool> seen(count, false);
    for (const Partner& partner : survey_.partners(peer))
      if (survey_.site_of[partner.peer] != kNowhere && partner.was_probed())
        seen[survey_.site_of[partner.peer]] = true;
    std::vector<uint32_t> sites;
    const auto add = [&](uint32_t site) {
      if (!seen[site]) sites.push_back(site);
      seen[site] = true;
    };
    if (survey_.likely[peer].size() <= kSeveral)
      std::for_each(survey_.likely[peer].begin(), survey_.likely[peer].end(), add);
    if (survey_.site_of[peer] != kNowhere) return sites;
    for (uint32_t i = 0; i < count; ++i) add((peer + i) % count);
    return sites;
  }
  bool take_one_of(uint32_t site, uint32_t peer) {
    std::vector<uint32_t>& free = free_[site];
    while (!free.empty() && !is_free_[free.back()]) free.pop_back();
    for (size_t i = free.size(), tries = 0; i-- > 0 && tries < kTriesMax; ++tries)
      if (take(peer, free[i])) return true;
    return false;
  }

  void site_pairs() {
    find_tops();
    for (uint32_t a = 0; a < survey_.site_count(); ++a)
      for (uint32_t b = a; b < survey_.site_count(); ++b)
        if (!settle(a, b) && !settle(b, a)) take_several(a, b);
  }
  void find_tops() {
    for (const std::vector<uint32_t>& members : survey_.members) {
      for (auto* tops : {&up_, &down_}) {
        const std::vector<double>& line = tops == &up_ ? survey_.uplink : survey_.downlink;
        std::vector<uint32_t> top(std::min(kTops, members.size()));
        std::partial_sort_copy(
            members.begin(), members.end(), top.begin(), top.end(),
            [&](uint32_t x, uint32_t y) { return std::pair(line[y], x) < std::pair(line[x], y); });
        tops->push_back(std::move(top));
      }
    }
  }
  // What lies between shows only where both ends' lines are faster.
  bool settle(uint32_t from, uint32_t to) {
    const SiteLink& between = survey_.between(from, to);
    if (between.usual().owned >= 2) return false;
    for (const uint32_t a : up_[from])
      for (const uint32_t b : down_[to]) {
        const double ends = std::min(survey_.uplink[a], survey_.downlink[b]);
        if ((between.usual().owned > 0 || ends > 1.15 * between.largest()) && has_room(a) && has_room(b) &&
            take(a, b))
          return true;
      }
    return false;
  }
  void take_several(uint32_t a, uint32_t b) {
    const size_t counted = survey_.between(a, b).samples() / (a == b ? 2 : 1);
    if (counted >= kSeveral) return;
    const std::vector<uint32_t> ones = free_[a];
    for (size_t i = ones.size(), tries = 0; i-- > 0 && tries < kTriesMax; ++tries)
      if (is_free_[ones[i]] && take_one_of(b, ones[i])) return;
  }

  void lines() {
    const Lines up(survey_, true), down(survey_, false);
    lines(up, down);
    lines(down, up);
  }
  void lines(const Lines& of, const Lines& others) {
    const auto fastest_first = by_line(others);
    for (const uint32_t peer : idle_) {
      if (!is_free_[peer] || !has_room(peer) || !of.is_open(peer, others)) continue;
      const std::vector<uint32_t>& site = fastest_first[best_site(peer, of)];
      if (!take_faster(peer, of, others, site)) take_unknown(peer, of, others, site);
    }
  }
  std::vector<std::vector<uint32_t>> by_line(const Lines& lines) const {
    std::vector<std::vector<uint32_t>> sites = survey_.members;
    for (std::vector<uint32_t>& site : sites)
      std::sort(site.begin(), site.end(), [&](uint32_t a, uint32_t b) {
        return std::pair(lines.own(b), a) < std::pair(lines.own(a), b);
      });
    return sites;
  }
  // Where least stands in the way: its own, if nothing is known to be better.
  uint32_t best_site(uint32_t peer, const Lines& of) const {
    uint32_t best = survey_.site_of[peer];
    if (survey_.members[best].size() > 1) return best;
    double most = 0;
    for (uint32_t site = 0; site < survey_.site_count(); ++site) {
      if (site == survey_.site_of[peer]) continue;
      const double there = of.most(peer, survey_.members[site].front());
      if (there > most) best = site, most = there;
    }
    return best;
  }
  // One of those whose lines are clearly faster, each peer beginning elsewhere.
  bool take_faster(uint32_t peer, const Lines& of, const Lines& others, const std::vector<uint32_t>& site) {
    const double wanted = kClearlyMore * of.own(peer);
    const auto end = std::partition_point(site.begin(), site.end(),
                                          [&](uint32_t other) { return others.own(other) >= wanted; });
    const auto count = static_cast<size_t>(end - site.begin());
    for (size_t i = 0; i < std::min(count, kTriesMax); ++i) {
      const uint32_t other = site[(peer + i) % count];
      if (of.most(peer, other) >= wanted && has_room(other) && take(peer, other)) return true;
    }
    return false;
  }
  // One of which nobody knows how fast it is either.
  void take_unknown(uint32_t peer, const Lines& of, const Lines& others, const std::vector<uint32_t>& site) {
    size_t tries = 0;
    for (const uint32_t other : site) {
      if (others.is_limit_known(other) || others.own(other) < 0.9 * of.own(peer)) continue;
      if (++tries > kTriesMax) return;
      if (of.most(peer, other) >= 1.15 * of.own(peer) && has_room(other) && take(peer, other)) return;
    }
  }

  const Survey& survey_;
  std::span<const PeerId> ids_;
  std::vector<bool> is_free_;
  std::vector<uint32_t> idle_{};
  const uint32_t partners_max_;
  std::vector<bool> is_there_{};                      // by site: somebody of it is idle
  std::vector<std::vector<uint32_t>> free_{};         // by site, the least measured last
  std::vector<std::vector<uint32_t>> up_{}, down_{};  // by site, those with the fastest lines
  std::vector<NumberPair> pairs_{};
};

}  // namespace

uint32_t partners_max(size_t peers) {
  if (peers <= kCore) return kCore;
  return 5 * static_cast<uint32_t>(std::bit_width(peers));
}

std::vector<NumberPair> pairs_to_measure(const Survey& survey, std::span<const PeerId> ids,
                                         std::span<const uint32_t> idle, std::span<const Place> places) {
  return Round(survey, ids, idle).run(places);
}

std::vector<NumberPair> pairs_to_repeat(const Survey& survey, std::span<const uint32_t> idle, Instant now) {
  std::vector<bool> is_free(survey.peers(), false);
  for (const uint32_t peer : idle) is_free[peer] = true;
  std::vector<std::tuple<Instant, uint32_t, uint32_t>> old;
  for (const uint32_t a : idle)
    for (const Partner& partner : survey.partners(a)) {
      const Duration keeps = partner.is_whole() ? kFreshFor : kRetryAfter;
      if (a < partner.peer && is_free[partner.peer] && partner.at() <= now - keeps)
        old.emplace_back(partner.at() + keeps, a, partner.peer);
    }
  std::sort(old.begin(), old.end());
  std::vector<NumberPair> pairs;
  for (const auto& [at, a, b] : old) {
    if (pairs.size() > idle.size() / 64) break;
    if (!is_free[a] || !is_free[b]) continue;
    is_free[a] = is_free[b] = false;
    pairs.emplace_back(a, b);
  }
  return pairs;
}

}  // namespace weft::broker
