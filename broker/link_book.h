// What the broker believes of the links between peers: which pairs to measure next, what the samples say
// together, and what stands in for what nobody has measured. Pure: time is handed in.
#pragma once

#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/units.h"
#include "broker/link_survey.h"
#include "plan/cluster.h"

namespace weft::broker {

// One direction of a pair, as measured while nothing else used either end's line.
struct LinkSample {
  PeerId from{}, to{};
  double bytes_per_second = 0;  // as received; 0: there was no way from one to the other
  Duration round_trip{};        // the least of several; includes whatever relays
  bool is_relayed = false;      // through the broker
  Instant at{};
};

class LinkBook {
 public:
  void record(const LinkSample& sample);
  // What a run's traffic showed of a link while it was saturated: keeps a sample fresh. One that was faster
  // than what is believed is believed at once, slower ones only if they go on.
  void observe(PeerId from, PeerId to, double bytes_per_second, Instant now);
  void forget(PeerId peer);  // that is gone for good: what is remembered counts as known
  // What is remembered of this direction; nothing: it was never measured.
  std::optional<LinkSample> find(const PeerId& from, const PeerId& to) const;

  // Pairs to measure now: no peer twice, the most needed first; empty: all is known that the book wants to
  // know of these peers. Deterministic. Up to 16 peers all pairs are wanted; of more a sample (each peer with
  // several others, and every two sites several times), O(n log n) probes in all. When nothing is missing,
  // what is old or failed is measured again, one pair after the other: that is no reason to wait, wants_more
  // is false.
  struct Pair {
    PeerId dials, accepts;
  };
  std::vector<Pair> next_round(std::span<const PeerId> idle, Instant now) const;
  bool wants_more(std::span<const PeerId> peers, Instant now) const;

  // Sites, lines and links of `devices` (by index the peers'): sets DeviceView::site, uplink, downlink, and
  // between/pairs. What was never measured is taken as slow and LinkView::is_assumed is set.
  plan::ClusterView cluster(std::vector<plan::DeviceView> devices, std::span<const PeerId> peers,
                            Instant now) const;

 private:
  struct Slower {  // traffic that ran slower than what is believed, one after the other
    uint32_t times = 0;
    double lately = 0;
  };

  void make_room(const PeerId& from, const PeerId& to);
  uint32_t number_of(const PeerId& peer);
  void set(uint32_t from, uint32_t to, const Seen& seen);
  void drop(uint32_t a, uint32_t b);
  // The known peers and those of `peers` that are not.
  std::vector<PeerId> known_and(std::span<const PeerId> peers) const;
  std::vector<uint32_t> numbers(const std::vector<PeerId>& ids, std::span<const PeerId> peers) const;

  std::map<PeerId, uint32_t> numbers_{};
  std::vector<PeerId> ids_{};  // by number
  Partners partners_{};        // by number
  std::map<std::pair<PeerId, PeerId>, Slower> slower_{};
};

}  // namespace weft::broker
