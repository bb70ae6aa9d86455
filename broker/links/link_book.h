// What the broker believes of the links between peers: which pairs to measure next, what the samples say
// together, and what stands in for what nobody has measured. Pure: time is handed in.
#pragma once

#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/units.h"
#include "broker/links/link_rounds.h"
#include "broker/links/link_survey.h"
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

// What a run's traffic showed of a link, as it was received: bytes a second, of all tensors together that
// were large enough to be timed, and of the fastest of them. Other traffic makes a tensor slow, and one that
// has waited at the receiver seems fast.
struct LinkTraffic {
  double usual = 0, fastest = 0;
};

class LinkBook {
 public:
  void record(const LinkSample& sample);
  // Keeps a sample fresh. What goes on differently from what is believed is believed: slower where even the
  // fastest tensor was, several times in a row; faster where all were. Whose line became slow one pair alone
  // does not tell. Uplinks are the scarcer ones: the sender's is blamed, and once others have been seen to
  // send slowly to the same receiver, its downlink instead. Older samples of a line that is blamed count as
  // that slow until they are measured again, which is as soon as they can be.
  void observe(PeerId from, PeerId to, const LinkTraffic& traffic, Instant now);
  // Another one whenever what is believed has changed by more than a tenth.
  uint64_t version() const { return version_; }
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
  // `places`: of each of the peers; empty: nothing is known.
  std::vector<Pair> next_round(std::span<const PeerId> idle, Instant now,
                               std::span<const Place> places = {}) const;
  // The same of what is missing alone.
  std::vector<Pair> missing_round(std::span<const PeerId> peers, std::span<const Place> places = {}) const;
  bool wants_more(std::span<const PeerId> peers, Instant now, std::span<const Place> places = {}) const;

  // Sites, lines and links of `devices` (by index the peers'): sets DeviceView::site, uplink, downlink, and
  // between/pairs. What was never measured is taken as slow and LinkView::is_assumed is set.
  plan::ClusterView cluster(std::vector<plan::DeviceView> devices, std::span<const PeerId> peers,
                            Instant now) const;

 private:
  std::vector<Pair> pairs_of(std::span<const PeerId> among, std::optional<Instant> repeated_at,
                             std::span<const Place> places) const;
  struct Streak {  // traffic that ran otherwise than what is believed, one after the other
    uint32_t times = 0;
    bool slower = false;
    double rate = 0;  // the fastest of the slower ones, the slowest of the faster ones
    Instant since{};
  };

  void make_room(const PeerId& from, const PeerId& to);
  uint32_t number_of(const PeerId& peer);
  void set(uint32_t from, uint32_t to, const Seen& seen);
  using Direction = std::pair<PeerId, PeerId>;  // from, to
  void became_slow(uint32_t from, uint32_t to, double rate, Instant since);
  void doubt(uint32_t from, uint32_t to, const Direction& because, double rate, Instant since);
  void believe_again(const PeerId& receiver);
  void forget_doubts(const Direction& pair);
  void drop(uint32_t a, uint32_t b);
  // The known peers and those of `peers` that are not.
  std::vector<PeerId> known_and(std::span<const PeerId> peers) const;
  std::vector<uint32_t> numbers(const std::vector<PeerId>& ids, std::span<const PeerId> peers) const;

  std::map<PeerId, uint32_t> numbers_{};
  std::vector<PeerId> ids_{};  // by number
  Partners partners_{};        // by number
  struct Doubt {
    Seen before{};
    Direction because{};
  };
  std::map<Direction, Streak> streaks_{};
  std::map<Direction, Doubt> doubts_{};  // samples that count as slower than they were
  std::set<Direction> slowed_{};         // seen by traffic, and not measured since
  uint64_t version_ = 0;
};

}  // namespace weft::broker
