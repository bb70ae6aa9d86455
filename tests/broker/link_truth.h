// Clusters whose links are known, and what a book finds of them: every probe finds min(the sender's uplink,
// what lies between the regions, the receiver's downlink), exactly or within a few per cent.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <set>

#include "base/rng.h"
#include "broker/links/link_book.h"

namespace weft::broker {

inline Duration of_seconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

struct Truth {
  struct Device {
    PeerId id{};
    uint32_t region = 0;
    double uplink = 0, downlink = 0;
  };
  Rng rng;
  std::vector<Device> devices{};
  uint32_t regions = 0;
  std::vector<double> rates{}, round_trips{};  // regions x regions

  // Each doubling as likely as the others.
  double draw(double low, double high) { return low * std::pow(high / low, rng.uniform()); }

  Truth(uint64_t seed, uint32_t count, uint32_t region_count) : rng(seed, 7), regions(region_count) {
    for (uint32_t d = 0; d < count; ++d) add(d % regions);
    rates.resize(size_t{regions} * regions);
    round_trips.resize(rates.size());
    for (uint32_t a = 0; a < regions; ++a)
      for (uint32_t b = 0; b <= a; ++b) {
        rates[a * regions + b] = a == b ? draw(5e7, 1e9) : draw(2e6, 1e8);
        rates[b * regions + a] = a == b ? rates[a * regions + b] : draw(2e6, 1e8);
        round_trips[a * regions + b] = round_trips[b * regions + a] =
            a == b ? draw(5e-4, 4e-3) : draw(2e-2, 4e-1);
      }
  }

  void add(uint32_t region) {
    Device device{.region = region, .uplink = draw(1e6, 1.25e8), .downlink = draw(2e6, 1.25e8)};
    for (uint8_t& byte : device.id.digest.bytes) byte = static_cast<uint8_t>(rng.next_u32());
    devices.push_back(device);
  }

  size_t between(size_t from, size_t to) const { return devices[from].region * regions + devices[to].region; }
  double rate(size_t from, size_t to) const {
    return std::min({devices[from].uplink, rates[between(from, to)], devices[to].downlink});
  }
  double round_trip(size_t from, size_t to) const { return round_trips[between(from, to)]; }

  std::vector<PeerId> ids() const {
    std::vector<PeerId> ids;
    for (const Device& device : devices) ids.push_back(device.id);
    return ids;
  }
  // With names of regions that are no help.
  std::vector<plan::DeviceView> views() const {
    std::vector<plan::DeviceView> views(devices.size());
    for (size_t d = 0; d < views.size(); ++d)
      views[d].region = d % 3 == 0 ? "" : d % 3 == 1 ? "here" : "there";
    return views;
  }
};

struct Effort {
  size_t rounds = 0, probes = 0;
};

// Probes until the book has enough.
inline Effort measure(LinkBook& book, Truth& truth, double noise, Instant now = {}) {
  Effort effort;
  const auto ids = truth.ids();
  std::map<PeerId, size_t> place;
  for (size_t d = 0; d < ids.size(); ++d) place[ids[d]] = d;
  const auto noisy = [&](double value) { return value * (1 + noise * (2 * truth.rng.uniform() - 1)); };
  for (;; ++effort.rounds) {
    const auto round = book.next_round(ids, now);
    if (round.empty() || effort.rounds > 100 * ids.size()) break;
    std::set<PeerId> taken;
    for (const LinkBook::Pair& pair : round) {
      EXPECT_TRUE(taken.insert(pair.dials).second && taken.insert(pair.accepts).second);
      const size_t a = place.at(pair.dials), b = place.at(pair.accepts);
      const Duration round_trip = of_seconds(noisy(truth.round_trip(a, b)));
      book.record({pair.dials, pair.accepts, noisy(truth.rate(a, b)), round_trip, false, now});
      book.record({pair.accepts, pair.dials, noisy(truth.rate(b, a)), round_trip, false, now});
      ++effort.probes;
    }
  }
  EXPECT_LE(effort.rounds, 100 * ids.size());
  EXPECT_FALSE(book.wants_more(ids, now));
  return effort;
}

struct Errors {
  size_t pairs = 0, off = 0, above = 0;
  double worst = 1;
};
// Pairs that are off by more than 15%; `above`: too fast by as much and not flagged.
inline Errors errors_of(const plan::ClusterView& view, const Truth& truth) {
  Errors errors;
  for (size_t a = 0; a < truth.devices.size(); ++a)
    for (size_t b = 0; b < truth.devices.size(); ++b) {
      if (a == b) continue;
      const plan::LinkView link = view.link(a, b);
      const double of_truth = link.bytes_per_second / truth.rate(a, b);
      const double late = std::abs(2 * seconds(link.latency) - truth.round_trip(a, b));
      ++errors.pairs;
      errors.off +=
          of_truth > 1.15 || of_truth < 0.85 || late > std::max(2e-3, 0.15 * truth.round_trip(a, b));
      errors.above += of_truth > 1.15 && !link.is_assumed;
      errors.worst = std::max({errors.worst, of_truth, 1 / of_truth});
    }
  return errors;
}

inline plan::ClusterView view_of(const LinkBook& book, const Truth& truth, Instant now = {}) {
  return book.cluster(truth.views(), truth.ids(), now);
}

// Whether two devices are at one site exactly if they are in one region.
inline bool has_sites_of(const plan::ClusterView& view, const Truth& truth) {
  std::map<uint32_t, uint32_t> region_of;
  std::set<uint32_t> regions;
  for (size_t d = 0; d < truth.devices.size(); ++d) {
    const uint32_t region = truth.devices[d].region;
    if (region_of.try_emplace(view.devices()[d].site, region).first->second != region) return false;
    regions.insert(region);
  }
  return view.site_count() == regions.size();
}

}  // namespace weft::broker
