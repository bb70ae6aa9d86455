// Measures links in rounds: idle peers measure the link between them in pairs, and in a round each peer
// belongs to one pair. A report counts only for the pair and the round that were asked. A peer that lies
// makes its own links look better or worse. A peer that is silent costs a round, and is left alone for a
// while.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "broker/jobs/job_book.h"
#include "broker/links/link_book.h"
#include "broker/place/stand_bys.h"

namespace weft::broker {

class Probes {
 public:
  Probes(const BrokerOptions& options, Step& step, Pool& pool, JobBook& book, const StandBys& stand_bys)
      : options_(options), step_(step), pool_(pool), book_(book), stand_bys_(stand_bys) {}

  void update();  // ends a round whose time is over, and begins the next
  void on_report(Peer& peer, const proto::ProbeReport& report);
  // What came of a step over a link that somebody has measured: what goes on otherwise than that is believed.
  void observe(const Peer& peer, const proto::StepReport& report);
  // Of a peer that has gone nothing is waited for.
  void drop(const PeerId& peer);
  void forget_links(const PeerId& peer);
  void let_rest_end(const PeerId& peer) { resting_.erase(peer); }
  // Somebody waits at the relay for the other end of a probe.
  void on_relay_waiting(const proto::Secret& ticket);

  // A plan is made once all is known of the links, or it has been waited for long enough. REQUIRES: it waits.
  bool waits_for(Job& job, const std::vector<Candidate>& free);
  // Whether it was measured with one of these: what its line carries is known.
  bool is_known(const PeerId& peer, const std::vector<Candidate>& among) const;
  plan::ClusterView cluster_of(const std::vector<Candidate>& candidates) const;
  proto::LinkList list() const;
  uint64_t version() const { return links_.version(); }

 private:
  // Two peers that measure the link between them.
  struct Pair {
    PeerId dials, accepts;
    proto::Secret ticket{};
    bool dialler_said = false, acceptor_said = false, measured = false;
  };
  struct Round {
    uint64_t number = 0;
    Instant deadline;
    std::vector<Pair> pairs;
  };
  // How a run's tensors went from one peer to another, as the sender said last.
  struct Way {
    bool is_relayed = false;
    proto::JobNumber job = 0;
    Instant at{};
  };
  bool may_probe(const Peer& peer) const;
  std::vector<PeerId> idle_peers() const;
  std::vector<PeerId> growing_peers() const;
  std::vector<Place> places_of(const std::vector<PeerId>& peers) const;
  void start_round(const std::vector<LinkBook::Pair>& pairs);
  void tell(const Pair& pair, const PeerId& to, const PeerId& other);
  Pair* pair_of(const PeerId& peer);
  void on_measured(const LinkSample& sample);
  void on_failed(Pair& pair, const Peer& peer, const Error& error);
  void end_pair();
  void end_round();
  void note_ways(const Peer& peer, const proto::StepReport& report);
  void note_dialled(const PeerId& dialled, bool answered);
  bool is_used(const PeerId& from, const PeerId& to, const Way& way) const;
  void list_pairs(const plan::ClusterView& cluster, proto::LinkList& list) const;

  const BrokerOptions& options_;
  Step& step_;
  Pool& pool_;
  JobBook& book_;
  const StandBys& stand_bys_;
  LinkBook links_;
  std::optional<Round> round_;  // under way
  uint64_t rounds_ = 0;
  std::map<PeerId, Instant> resting_;              // until when they are not asked to measure
  std::map<std::pair<PeerId, PeerId>, Way> ways_;  // from, to
};

}  // namespace weft::broker
