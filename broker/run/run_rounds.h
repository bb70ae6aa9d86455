// Snapshots of a run: when they are written into the script, and what they are good for once they are whole.
//
// A Checkpoint is durable, a CopyState need not survive the broker. When all stages have reported one and its
// step is committed it is what the run goes back to if a peer is lost. There is at most one for a step. At
// most one waits behind the one under way, unless every step has one (copy_pace.h). Where peers stand by for
// all stages, copies that no commit waits for go to these directly: stages report them as soon as they are
// made, and a part is in when a peer has fetched it. Of replicas with local
// steps there are some only after they have agreed; what they agree on must be the same with all of them.
// Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "broker/run/absence.h"
#include "broker/run/copy_pace.h"
#include "broker/run/followers.h"
#include "broker/run/inner_steps.h"
#include "broker/run/planned_run.h"
#include "broker/run/round.h"
#include "broker/run/rounds_under_way.h"
#include "broker/run/run_effects.h"
#include "broker/run/run_options.h"
#include "broker/run/stalls.h"

namespace weft::broker {

// Where in a run a snapshot is written.
struct SnapshotPlace {
  uint64_t sequence = 0;  // of its command
  uint64_t granted = 0, committed = 0;
  bool may_be_direct = false;  // each stage has a peer that can fetch its copies, and the run goes on
};
// What came of a stage's part of a snapshot.
struct SnapshotPart {
  bool is_direct = false;  // for others to fetch
  std::optional<Error> failure{};
  bool is_complete = false;  // every stage has made its part of a direct one,
  bool is_dropped = false;   // which is not wanted any more
  std::optional<Disagreement> disagreement{};
};

class Rounds {
 public:
  // `absence`: the replicas that the run has lost; it and `followers` outlive this.
  Rounds(proto::JobNumber job, std::shared_ptr<const PlannedRun> plan, const RunBegin& begin,
         const RunOptions& options, const Absence& absence, Followers& followers);

  void start(Instant now) { last_checkpoint_ = now; }
  // Instead: as the last command of a broker before this one had it, and each command that is not settled.
  void resume(uint64_t keep_from);
  void resume(const proto::Command& command, uint64_t recorded);

  // ---- writing

  // What is to be copied after the last step granted; nothing: no snapshot is due.
  enum class Kind : uint8_t { Checkpoint, Copy };
  std::optional<Kind> due(uint64_t granted) const;
  // The step whose copy is the next; nothing: it is not known yet.
  std::optional<uint64_t> next_copy(uint64_t granted) const;
  // The run is to end, or with `moving` to go on with other peers: whether another snapshot is needed first.
  enum class Last : uint8_t {
    IsWritten,    // or there
    Now,          // of the last step granted
    AfterAnother  // step: a step has one snapshot, and this one's will not do
  };
  Last last_needed(uint64_t granted, bool moving) const;
  bool has_last(uint64_t granted, bool moving) const;
  // Whether a checkpoint is due by the time; then due() says it, until it is written.
  bool ask_for_checkpoint(Instant now, uint64_t granted);
  // Whether it is time to try a last one again that failed. Says so once.
  bool take_retry(Instant now);

  using Place = SnapshotPlace;
  // The command of a snapshot of the last step granted.
  proto::Command write(Instant now, Kind kind, const Place& place);

  // ---- what stages and peers say

  bool is_asked(uint32_t stage, uint64_t step) const;  // and has not been answered
  using Part = SnapshotPart;
  // `blobs_missing`: of the report's tensors, how many the broker has not, which a direct copy may. REQUIRES:
  // is_asked(). InvalidArgument: the stage breaks the protocol.
  Result<Part> on_report(Instant now, uint32_t stage, const proto::CheckpointReport& report,
                         uint32_t blobs_missing);
  // Somebody has fetched that stage's part; whether the copy is whole by it.
  bool on_fetched(Instant now, uint32_t stage, uint64_t step);
  // A stage says how much of its part of a checkpoint the broker has. No less than it has said before, and no
  // more than there is, is believed; of what is not under way nothing.
  void on_saving(uint32_t stage, uint64_t step, Bytes saved);
  void on_resumed(uint32_t stage) { rounds_.on_resumed(stage); }
  // All stages have done a step, which took so many seconds (0: not known).
  void on_step_done(Instant now, uint64_t step, double took);

  // Snapshots that are whole, and whose steps are committed, in order; `dropped`: so many direct ones that
  // nobody waits for any more.
  struct Completed {
    std::vector<WholeSnapshot> whole{};
    size_t dropped = 0;
  };
  Completed complete(Instant now, uint64_t committed, bool moving);

  // ---- replicas that were lost

  bool can_leave_out(uint64_t step) const { return rounds_.can_leave_out(step); }
  void leave_out() { rounds_.leave_out(absence_); }  // those that are absent now

  // ---- direct copies

  // Nobody is there to fetch what is under way; whether any of it can go at once.
  bool drop_direct();
  // A direct copy failed: whether that was the last one.
  bool give_up_direct(const Error& why);
  bool has_given_up_direct() const { return direct_failed_; }
  // The step of a direct copy that nobody has fetched for too long.
  std::optional<uint64_t> unfetched(Instant now) const;
  // Whether copies may stay with replicas, because every peer can be reached by those who come; and whether
  // they do: each replica has what all agreed on.
  void let_stay(bool may) { may_stay_ = may; }
  bool do_stay() const { return may_stay_ && (have_stayed_ || pace_.stays_with_replicas()); }
  // The oldest direct copy of which every stage has its part and that is not whole yet; and the newest one
  // under way of which somebody who is there has each stage's part.
  std::optional<CheckpointCommitted> copy_to_fetch() const;
  std::optional<CheckpointCommitted> newest_copy(
      uint64_t committed, const std::function<bool(uint32_t stage, uint64_t step)>& has) const;

  // ---- what is known

  const CopyPace& pace() const { return pace_; }
  uint64_t checkpointed() const { return checkpointed_; }  // the step of the last committed checkpoint
  uint64_t keep_from() const { return keep_from_; }        // stages forget what is older
  bool is_idle() const { return rounds_.empty(); }
  bool is_settled(uint64_t sequence) const { return !rounds_.has(sequence); }
  const RoundsUnderWay& under_way() const { return rounds_; }
  std::optional<Saving> saving() const { return rounds_.saving(bytes_); }

  // Its invariants. Internal: which one does not hold.
  Status check(uint64_t committed, uint64_t granted) const;

 private:
  Round& add(Round round);
  CheckpointCommitted taken_from(Round round) const;

  proto::JobNumber job_;
  std::shared_ptr<const PlannedRun> plan_;
  InnerSteps inner_;
  RunOptions options_;
  const Absence& absence_;
  Followers& followers_;
  CopyPace pace_;
  std::vector<Bytes> bytes_;  // by stage, of a snapshot
  RoundsUnderWay rounds_;
  uint64_t checkpointed_;
  uint64_t recovery_;    // of the last whole snapshot
  uint64_t begun_with_;  // as far as was safe before
  bool recovery_is_direct_ = false, recovery_stays_ = false;
  uint64_t keep_from_;
  struct Written {  // the last one
    uint64_t step = 0;
    bool is_durable = false;
  } written_;
  uint64_t count_ = 0;  // written
  bool checkpoint_due_ = false;
  std::optional<Instant> retry_at_{};
  Instant last_checkpoint_{};
  bool direct_failed_ = false;
  bool may_stay_ = false, have_stayed_ = false;
  uint32_t direct_failures_ = 0;  // in a row
};

}  // namespace weft::broker
