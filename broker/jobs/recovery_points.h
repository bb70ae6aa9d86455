// What a job can go back to. Checkpoints are durable. Rounds are not: they need not survive the broker, and a
// *direct* round exists only on peers.
//
// The last checkpoint is never dropped: each of its blobs was seen at the broker before it was committed, so
// a peer that cannot load it is believed of itself alone.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/digest.h"
#include "broker/records.h"

namespace weft::broker {

class RecoveryPoints {
 public:
  void load(std::vector<CheckpointCommitted> checkpoints) { checkpoints_ = std::move(checkpoints); }

  // The newest; nothing: the start.
  const CheckpointCommitted* newest() const;
  const CheckpointCommitted* checkpoint() const {
    return checkpoints_.empty() ? nullptr : &checkpoints_.back();
  }
  // As a run's commands count; and, for people, steps of the run.
  uint64_t step() const { return newest() == nullptr ? 0 : newest()->step; }
  uint64_t checkpointed_step() const { return checkpoint() == nullptr ? 0 : checkpoint()->step; }
  uint64_t steps_made() const { return newest() == nullptr ? 0 : newest()->made(); }
  uint64_t steps_checkpointed() const { return checkpoint() == nullptr ? 0 : checkpoint()->made(); }
  // "the copy of step 12", "the start".
  std::string describe() const;
  // What of it stands for what replicas that are gone alone had; empty: nothing.
  std::string describe_heirs() const;
  // Peers have it and the broker has not.
  bool is_direct() const { return round_.has_value() && round_is_direct_; }
  // Those whose stages made it, and nobody else: of replicas.
  bool stays() const { return is_direct() && round_stays_; }

  // The newest, if it is one that the broker has and need not survive it.
  const CheckpointCommitted* round_at_broker() const {
    return round_.has_value() && !round_is_direct_ ? &*round_ : nullptr;
  }

  void commit_checkpoint(CheckpointCommitted checkpoint);
  void commit_round(CheckpointCommitted round, bool direct, bool stays = false);
  // Nobody has these tensors of a round that stays any more. What a replica alone had stands for what others
  // of it would have been: the round says so (proto::LocalPoint). False: it cannot do without; it is as it
  // was.
  bool inherit(const std::set<Digest>& lost);
  // Without its newest round; false: that is a checkpoint or the start, and stays.
  bool drop_round();
  // The newest checkpoint turned out to be damaged on the broker's own disk: without it.
  void drop_damaged_checkpoint();
  void end();  // checkpoints alone are left

  // Of a direct round, who has each blob, once its run has ended.
  std::map<Digest, std::set<PeerId>> holders{};

  // Blobs of rounds, of the one before too: somebody may be fetching those.
  void add_transient(std::vector<Digest>& blobs) const;
  void add_durable(std::set<Digest>& blobs) const;

 private:
  void keep_round_before();

  std::vector<CheckpointCommitted> checkpoints_;  // at most two, newest last
  std::optional<CheckpointCommitted> round_;      // newer than those
  bool round_is_direct_ = false, round_stays_ = false;
  std::optional<CheckpointCommitted> round_at_broker_;  // the last one, before direct ones
  std::vector<Digest> round_before_;
};

}  // namespace weft::broker
