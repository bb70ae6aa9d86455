// Who holds what for whom: peers of the pool have the tensors of stages that they may have to take, from the
// broker or, where copies go directly, from the stages' own peers, which the broker then has not. Each stage
// is held by two at most, for each costs the broker or the stage's peer its bytes again.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "broker/jobs/job_book.h"
#include "broker/jobs/runs.h"
#include "broker/place/placement.h"

namespace weft::broker {

// What a peer of the pool was told to hold of a run.
struct Standing {
  uint64_t step = 0;
  uint64_t list = 0;  // its number
  std::vector<uint32_t> stages{};
  bool is_direct = false;              // it fetches from the stages themselves
  std::optional<uint64_t> complete{};  // all tensors of this step are there
  bool holds(uint32_t stage, uint64_t of_step) const;
};

// Of a stage that is assigned while copies of the state are with peers alone.
struct StateSources {
  std::vector<proto::BlobSource> sources{};  // who gives its peer what it has not
  std::vector<Digest> lends{};               // what its peer gives others
  bool empty() const { return sources.empty() && lends.empty(); }
};

class StandBys {
 public:
  StandBys(const BrokerOptions& options, Step& step, Pool& pool, JobBook& book, Runs& runs)
      : options_(options), step_(step), pool_(pool), book_(book), runs_(runs) {}

  // Who holds what is dealt out anew; told is only what differs.
  void update();
  void on_standing_by(Peer& peer, const proto::StandingBy& message);
  void forget(const PeerId& peer) { standing_.erase(peer); }
  // Nothing when it holds nothing of that run.
  const Standing* find(const PeerId& peer, proto::JobNumber run) const;
  // Whether something that it is to hold is on its way.
  bool is_fetching(const PeerId& peer) const;

  // The run has lost somebody: the newest copy of which each part is still with somebody is what it goes back
  // to. A peer whose stage failed still has its part. REQUIRES: it runs.
  void find_holders(Job& job);
  // Who has gone holds nothing of the newest copy any more. Without a part of it the copy is dropped, unless it
  // stays with replicas and others stand for what is gone.
  enum class Left : uint8_t { All, Inherited, Nothing };
  Left lose_holders(Job& job);
  // By stage of the job's plan: from whom its peer gets what it has not, and what it keeps for others.
  // Nothing: somebody cannot get what it needs.
  std::optional<std::vector<StateSources>> find_sources(const Job& job) const;

  // Which of the blobs that need not survive the broker are still spoken of.
  void keep_transient();

 private:
  struct Point {  // what peers stand by with
    const CheckpointCommitted* snapshot = nullptr;
    bool is_direct = false;
  };
  std::vector<Holder> holders_for(const Job& job, const std::map<PeerId, int64_t>& free,
                                  std::vector<PeerId>& ids) const;
  void deal(Job& job, std::map<PeerId, int64_t>& free, std::map<PeerId, std::set<proto::JobNumber>>& wanted);
  std::optional<PeerId> giver_of(const std::set<PeerId>& holders, const PlannedRun& plan,
                                 const std::map<PeerId, int64_t>& given) const;
  void tell(Peer& peer, Job& job, const std::vector<uint32_t>& stages, const Point& point);
  void let_go(const std::map<PeerId, std::set<proto::JobNumber>>& wanted);
  void drop_direct_copies(Job& job);

  const BrokerOptions& options_;
  Step& step_;
  Pool& pool_;
  JobBook& book_;
  Runs& runs_;
  std::map<PeerId, std::map<proto::JobNumber, Standing>> standing_;
  uint64_t lists_ = 0;  // of tensors to stand by with
};

}  // namespace weft::broker
