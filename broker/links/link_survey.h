// What samples of links say together: the line of each peer, which peers stand at one site, and what lies
// between two sites. A sample is min(the sender's uplink, what lies between, the receiver's downlink), so the
// largest rate seen from a peer is the least that its uplink can be, and a sample that is clearly below both
// ends' lines is what lies between. Peers are numbers here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/units.h"

namespace weft::broker {

enum class RouteKind : uint8_t { Direct, Relayed, None };

// One direction of a pair.
struct Seen {
  std::optional<double> rate{};        // bytes a second; 0: no way; nothing: not known
  std::optional<double> round_trip{};  // seconds; nothing: no probe came through, at most traffic
  bool is_relayed = false;
  Instant at{};
};
// What is known of a pair, seen from one of its ends.
struct Partner {
  uint32_t peer = 0;
  Seen out{}, in{};  // to the partner and from it

  RouteKind route() const;
  std::optional<double> round_trip() const;  // the least
  bool was_probed() const { return round_trip() || route() == RouteKind::None; }
  bool is_whole() const { return out.round_trip && in.round_trip; }
  Instant at() const;  // of the older direction
};
using Partners = std::vector<std::vector<Partner>>;  // by peer; each by ascending number

// Up to which two measurements are taken for the same.
struct Tolerance {
  double share = 0.15;
  double seconds = 2e-3;  // of round trips

  bool same_time(double a, double b) const;
  // A short probe cannot tell very high rates apart.
  double of_rate(double rate) const { return std::max(share, rate / 2.5e9); }
};

// What was measured from the peers of one site to those of another (or of the same).
struct SiteLink {
  struct Samples {
    uint32_t count = 0;
    uint32_t timed = 0;
    double round_trips = 0;  // their sum
    double largest = 0;      // of the rates
    uint32_t owned = 0;
    double own = 0;  // the sum of rates clearly below both ends' lines
    void add(const Samples& other);
  };
  Samples direct{}, relayed{};
  uint32_t none = 0;

  uint32_t samples() const { return direct.count + relayed.count + none; }
  // That no probe came through may be chance: nobody is told apart by it.
  bool is_evidence() const { return direct.count + relayed.count > none; }
  bool is_relayed() const { return relayed.count > direct.count; }
  const Samples& usual() const { return is_relayed() ? relayed : direct; }

  bool is_timed() const { return usual().timed > 0; }
  double round_trip() const { return usual().round_trips / usual().timed; }
  double largest() const { return usual().largest; }
  // Between what two the path's rate lies.
  double least() const { return usual().owned > 0 ? usual().own / usual().owned : usual().largest; }
  double most() const {
    return usual().owned > 0 ? std::max(least(), largest()) : std::numeric_limits<double>::infinity();
  }
  void add(const SiteLink& other);
};

inline constexpr uint32_t kNowhere = ~0u;
inline constexpr uint32_t kCore = 16;  // so many peers are measured with each other; of fewer all pairs

// How many sites are told apart at most, so that every two can be measured some times. Were there more, peers
// count as alike that differ more.
uint32_t sites_max(size_t peers);

struct Survey {
  // `known`: of the first of so many peers, which outlives the survey; of the others nothing is known.
  // `asked`: those that somebody wants to know about, each once.
  Survey(const Partners& known, uint32_t peers, std::span<const uint32_t> asked);

  uint32_t peers() const { return static_cast<uint32_t>(site_of.size()); }
  uint32_t site_count() const { return static_cast<uint32_t>(members.size()); }
  const SiteLink& between(uint32_t from, uint32_t to) const { return table[from * members.size() + to]; }
  const std::vector<Partner>& partners(uint32_t peer) const;
  const Partner* find(uint32_t peer, uint32_t other) const;
  size_t known_pairs(std::span<const uint32_t> peers) const;  // of these how many were measured

  const Partners* known;
  std::vector<double> uplink{}, downlink{};      // the least that they can be; 0: nothing was seen
  std::vector<uint32_t> core{};                  // at most kCore
  std::vector<uint32_t> site_of{};               // kNowhere: too little is known of the peer
  std::vector<std::vector<uint32_t>> members{};  // by site, ascending
  std::vector<SiteLink> table{};                 // sites x sites
  // By peer: where it may stand, the likeliest first, until somebody who stands there was measured with it.
  std::vector<std::vector<uint32_t>> likely{};
};

// The rate of a line of which these were seen: the middle of the largest ones, which differ only by noise.
double line_of(std::vector<double>& rates);

}  // namespace weft::broker
