// What is believed of links, against clusters whose truth is known: every probe finds min(the sender's uplink,
// what lies between the regions, the receiver's downlink), exactly or within a few per cent.
#include "broker/link_book.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <cmath>
#include <iostream>
#include <limits>
#include <map>
#include <set>

#include "base/rng.h"

namespace weft::broker {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;

Duration of_seconds(double seconds) {
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
    for (uint32_t d = 0; d < count; ++d) {
      Device device{.region = d % regions, .uplink = draw(1e6, 1.25e8), .downlink = draw(2e6, 1.25e8)};
      for (uint8_t& byte : device.id.digest.bytes) byte = static_cast<uint8_t>(rng.next_u32());
      devices.push_back(device);
    }
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

  size_t place(const PeerId& id) const {
    for (size_t d = 0; d < devices.size(); ++d)
      if (devices[d].id == id) return d;
    ADD_FAILURE() << "a peer that is not there";
    return 0;
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
  std::vector<plan::DeviceView> views() const { return std::vector<plan::DeviceView>(devices.size()); }
};

struct Effort {
  size_t rounds = 0, probes = 0;
};

// Probes until the book has enough.
Effort measure(LinkBook& book, Truth& truth, double noise, Instant now = {}) {
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
Errors errors_of(const plan::ClusterView& view, const Truth& truth) {
  Errors errors;
  for (size_t a = 0; a < truth.devices.size(); ++a)
    for (size_t b = 0; b < truth.devices.size(); ++b) {
      if (a == b) continue;
      const plan::LinkView link = view.link(a, b);
      const double of_truth = link.bytes_per_second / truth.rate(a, b);
      const double late = std::abs(2 * seconds(link.latency) - truth.round_trip(a, b));
      ++errors.pairs;
      errors.off += of_truth > 1.15 || of_truth < 0.85 || late > std::max(2e-3, 0.15 * truth.round_trip(a, b));
      errors.above += of_truth > 1.15 && !link.is_assumed;
      errors.worst = std::max({errors.worst, of_truth, 1 / of_truth});
    }
  return errors;
}

TEST(Probe, Experiment) {
  for (double noise : {0.0})
    for (auto [n, k] : {std::pair{1000u,20u}})
      for (uint64_t seed = 1; seed <= (n > 200 ? 1 : 4); ++seed) {
        Truth truth(seed, n, k);
        LinkBook book;
        const auto begin = std::chrono::steady_clock::now();
        const Effort effort = measure(book, truth, noise);
        const double ms = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() * 1e3;
        const auto b2 = std::chrono::steady_clock::now();
        const auto view = book.cluster(truth.views(), truth.ids(), {});
        const double ms2 = std::chrono::duration<double>(std::chrono::steady_clock::now() - b2).count() * 1e3;
        for (int rep = 0; rep < 3; ++rep) { const auto c0 = std::clock(); for (int i = 0; i < 20; ++i) book.next_round(truth.ids(), {}); const auto c1 = std::clock(); for (int i = 0; i < 20; ++i) book.cluster(truth.views(), truth.ids(), {}); const auto c2 = std::clock(); std::cout << "cpu ms next_round " << double(c1-c0)/20e3 << " cluster " << double(c2-c1)/20e3 << std::endl; }
        const Errors errors = errors_of(view, truth);
        std::cout << "noise " << noise << " n " << n << " k " << k << " seed " << seed << ": rounds " << effort.rounds << " probes/peer "
                  << 2.0*double(effort.probes)/n << " sites " << view.site_count() << " off " << 100.0*double(errors.off) / double(errors.pairs)
                  << "% above " << 100.*double(errors.above)/double(errors.pairs) << "% worst " << errors.worst << " ms/round " << ms / double(effort.rounds)<< " cluster ms " << ms2 << " pairs " << view.has_pairs() << std::endl;
      }
}

}  // namespace
}  // namespace weft::broker
