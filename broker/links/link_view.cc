#include "broker/links/link_view.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace weft::broker {
namespace {

constexpr double kLeastRate = 1e3;   // planners divide by rates
constexpr double kStep = 0.05;       // of rates of lines
constexpr double kSameLine = 0.1;    // lines within it are one
constexpr double kException = 0.12;  // by what a pair differs from what its sites say
constexpr size_t kLonelyMax = 64;    // peers at sites of their own for want of samples

Duration one_way(double round_trip) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(round_trip / 2));
}
double rounded(double rate) { return std::pow(1 + kStep, std::round(std::log(rate) / std::log1p(kStep))); }
template <typename T>
T at_share(std::vector<T>& values, double share) {
  const auto at = values.begin() + static_cast<ptrdiff_t>(static_cast<double>(values.size() - 1) * share);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// Lines that differ by no more than noise get one rate, so that devices that are equal stay equal.
std::vector<double> evened(const std::vector<double>& lines) {
  std::vector<uint32_t> order;
  for (uint32_t peer = 0; peer < lines.size(); ++peer)
    if (lines[peer] > 0) order.push_back(peer);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return lines[a] < lines[b]; });
  std::vector<double> even(lines.size(), 0);
  for (size_t first = 0, end; first < order.size(); first = end) {
    const double least = lines[order[first]];
    const double slack = 1 + std::max(kSameLine, Tolerance{.share = 0}.of_rate(least));
    for (end = first; end < order.size() && lines[order[end]] <= least * slack;) ++end;
    const double rate = rounded(std::sqrt(least * lines[order[end - 1]]));  // nobody is moved far
    for (size_t i = first; i < end; ++i) even[order[i]] = rate;
  }
  return even;
}

// What was measured between two sites, one direction.
struct Measured {
  std::vector<double> own{};     // rates clearly below both ends' lines: the path's
  std::vector<double> faster{};  // the others, which say only that the path is not slower
  std::vector<double> round_trips{};
  bool has_failed = false;
};

// The slowest that was seen from a site to any other, or to it from any.
struct Slowest {
  double rate = 0, round_trip = 0;  // 0: nothing was seen
  void add(const Seen& seen) {
    if (const double seen_rate = seen.rate.value_or(0); seen_rate > 0)
      rate = rate > 0 ? std::min(rate, seen_rate) : seen_rate;
    round_trip = std::max(round_trip, seen.round_trip.value_or(0));
  }
};

class LinksOf {
 public:
  LinksOf(const Survey& survey, std::span<const uint32_t> numbers)
      : survey_(survey),
        numbers_(numbers),
        uplink_(evened(survey.uplink)),
        downlink_(evened(survey.downlink)),
        site_of_(survey.peers(), kNowhere),
        assumed_(assumed()) {}

  plan::ClusterView view(std::vector<plan::DeviceView> devices) {
    choose_sites(devices);
    for (size_t d = 0; d < devices.size(); ++d) {
      devices[d].site = site_of_[numbers_[d]];
      devices[d].uplink = line(uplink_[numbers_[d]]);
      devices[d].downlink = line(downlink_[numbers_[d]]);
    }
    plan::ClusterView view(std::move(devices));
    gather();
    for (uint32_t from = 0; from < sites_; ++from)
      for (uint32_t to = 0; to < sites_; ++to) view.set_between(from, to, between(from, to));
    set_exceptions(view);
    return view;
  }

 private:
  double line(double rate) const { return rate > 0 ? std::max(rate, kLeastRate) : assumed_.bytes_per_second; }

  plan::LinkView assumed() const {
    plan::LinkView link = kAssumedLink;
    std::vector<double> rates, round_trips;
    for (uint32_t peer = 0; peer < survey_.peers(); ++peer)
      for (const Partner& partner : survey_.partners(peer)) {
        if (partner.out.rate.value_or(0) > 0) rates.push_back(*partner.out.rate);
        if (partner.out.round_trip) round_trips.push_back(*partner.out.round_trip);
      }
    if (!rates.empty())
      link.bytes_per_second = std::max(kLeastRate, std::min(link.bytes_per_second, at_share(rates, 0.1)));
    if (!round_trips.empty()) link.latency = std::max(link.latency, one_way(at_share(round_trips, 0.9)));
    return link;
  }

  // By the first of their devices. Of a peer of which too little is known: where it may stand; else its own;
  // of many such, and of those that were never measured, one for those of a region name.
  void choose_sites(const std::vector<plan::DeviceView>& devices) {
    std::map<uint32_t, uint32_t> measured;
    std::map<std::string, uint32_t> named;
    size_t lonely = 0;
    for (size_t d = 0; d < devices.size(); ++d) {
      const uint32_t peer = numbers_[d];
      uint32_t site = survey_.site_of[peer];
      if (site == kNowhere && !survey_.likely[peer].empty()) site = survey_.likely[peer].front();
      if (site_of_[peer] != kNowhere) continue;
      if (site != kNowhere) {
        site_of_[peer] = measured.try_emplace(site, sites_).first->second;
        placed_.insert(site_of_[peer]);
      } else if (!survey_.partners(peer).empty() && ++lonely <= kLonelyMax) {
        site_of_[peer] = sites_;
      } else {
        const uint32_t of_name = named.try_emplace(devices[d].region, sites_).first->second;
        site_of_[peer] = of_name;
        named_.insert(of_name);
      }
      sites_ = std::max(sites_, site_of_[peer] + 1);
    }
    // What peers that are no candidates know of these sites counts too.
    for (uint32_t peer = 0; peer < survey_.peers(); ++peer)
      if (const auto at = measured.find(survey_.site_of[peer]); at != measured.end())
        site_of_[peer] = at->second;
  }

  void gather() {
    measured_.resize(size_t{sites_} * sites_);
    from_.resize(sites_);
    to_.resize(sites_);
    for (uint32_t peer = 0; peer < survey_.peers(); ++peer) {
      const uint32_t from = site_of_[peer];
      if (from == kNowhere || named_.contains(from)) continue;
      for (const Partner& partner : survey_.partners(peer)) {
        from_[from].add(partner.out);
        to_[from].add(partner.in);
        const uint32_t to = site_of_[partner.peer];
        if (to != kNowhere && !named_.contains(to))
          add(partner, ends(peer, partner.peer), measured_[size_t{from} * sites_ + to]);
      }
    }
  }
  double ends(uint32_t from, uint32_t to) const {
    return std::min(survey_.uplink[from], survey_.downlink[to]);
  }
  static bool is_paths_own(double rate, double ends) { return rate < ends * (1 - Tolerance{}.of_rate(rate)); }
  static void add(const Partner& partner, double ends, Measured& to) {
    if (const auto round_trip = partner.round_trip()) to.round_trips.push_back(*round_trip);
    if (!partner.out.rate) return;
    const double rate = *partner.out.rate;
    if (rate <= 0) {
      to.has_failed = true;
    } else if (is_paths_own(rate, ends)) {
      to.own.push_back(rate);
    } else {
      to.faster.push_back(rate);
    }
  }

  plan::LinkView between(uint32_t from, uint32_t to) {
    Measured& measured = measured_[size_t{from} * sites_ + to];
    plan::LinkView link = assumed_;
    if (!measured.round_trips.empty()) link.latency = one_way(at_share(measured.round_trips, 0.5));
    if (const double rate = path_rate(measured); rate > 0) {
      link.bytes_per_second = std::max(rate, kLeastRate);
      link.is_assumed = false;
    } else if (measured.has_failed) {
      return kNoWay;
    } else if (placed_.contains(from) || placed_.contains(to)) {
      guess(from_[from], to_[to], link);
    }
    return link;
  }
  // Who has just come was measured with few: to the others it is taken for no faster than the slowest that
  // was seen of its line, and of theirs.
  static void guess(const Slowest& from, const Slowest& to, plan::LinkView& link) {
    if (from.rate <= 0 || to.rate <= 0) return;
    link.bytes_per_second = std::max(kLeastRate, std::min(from.rate, to.rate));
    link.latency = one_way(std::max(from.round_trip, to.round_trip));
  }
  // The middle of what is the path's own, unless more samples than those were faster: then these are
  // exceptions.
  static double path_rate(Measured& measured) {
    const double largest =
        measured.faster.empty() ? 0 : *std::max_element(measured.faster.begin(), measured.faster.end());
    if (measured.own.empty()) return largest;
    const double own = at_share(measured.own, 0.5);
    const auto against = std::count_if(measured.faster.begin(), measured.faster.end(), [&](double rate) {
      return rate > own * (1 + Tolerance{}.of_rate(own));
    });
    return static_cast<size_t>(against) > measured.own.size() ? largest : own;
  }

  void set_exceptions(plan::ClusterView& view) const {
    std::vector<uint32_t> device_of(survey_.peers(), kNowhere);
    for (uint32_t d = 0; d < numbers_.size(); ++d) device_of[numbers_[d]] = d;
    for (uint32_t from = 0; from < numbers_.size(); ++from)
      for (const Partner& partner : survey_.partners(numbers_[from]))
        if (const uint32_t to = device_of[partner.peer]; to != kNowhere)
          set_exception(view, from, to, partner);
  }
  static void set_exception(plan::ClusterView& view, uint32_t from, uint32_t to, const Partner& partner) {
    const plan::LinkView& path = view.path(from, to);
    plan::LinkView own = path;
    if (partner.out.rate && *partner.out.rate <= 0) {
      own = kNoWay;
    } else {
      const std::optional<double> round_trip = partner.round_trip();
      if (round_trip && !Tolerance{}.same_time(*round_trip, 2 * seconds(path.latency)))
        own.latency = one_way(*round_trip);
      if (partner.out.rate && !is_like(*partner.out.rate, view.link(from, to).bytes_per_second)) {
        own.bytes_per_second = std::max(*partner.out.rate, kLeastRate);
        own.is_assumed = false;
      }
    }
    if (own != path) view.set_link(from, to, own);
  }
  static bool is_like(double rate, double believed) {
    const double slack = 1 + kException + Tolerance{}.of_rate(rate) - Tolerance{}.share;
    return rate <= believed * slack && believed <= rate * slack;
  }

  const Survey& survey_;
  std::span<const uint32_t> numbers_;
  std::vector<double> uplink_, downlink_;  // evened
  std::vector<uint32_t> site_of_;          // by peer, as the view numbers them
  plan::LinkView assumed_;
  uint32_t sites_ = 0;
  std::set<uint32_t> placed_{};         // sites where peers stand for sure
  std::set<uint32_t> named_{};          // sites of which nothing is known but a name
  std::vector<Slowest> from_{}, to_{};  // by site
  std::vector<Measured> measured_{};
};

}  // namespace

plan::ClusterView view_links(const Survey& survey, std::vector<plan::DeviceView> devices,
                             std::span<const uint32_t> numbers) {
  return LinksOf(survey, numbers).view(std::move(devices));
}

}  // namespace weft::broker
