// The snapshots of a run that are under way, in the order in which they were written: what is asked of all of
// them. What they are good for is decided in run_rounds.h. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "broker/run/absence.h"
#include "broker/run/round.h"
#include "broker/run/stalls.h"

namespace weft::broker {

class RoundsUnderWay {
 public:
  auto begin() { return rounds_.begin(); }
  auto end() { return rounds_.end(); }
  auto begin() const { return rounds_.begin(); }
  auto end() const { return rounds_.end(); }
  auto rbegin() const { return rounds_.rbegin(); }
  auto rend() const { return rounds_.rend(); }
  bool empty() const { return rounds_.empty(); }
  size_t size() const { return rounds_.size(); }
  Round& add(Round round) { return rounds_.emplace_back(std::move(round)); }
  Round take_first();  // REQUIRES: !empty()
  void drop(uint64_t step) {
    std::erase_if(rounds_, [step](const Round& round) { return round.step == step; });
  }

  // That of the step, of which the stage has yet to report its part; nullptr: there is none.
  Round* asked(uint32_t stage, uint64_t step);
  // A stage came back: what it had uploaded may have gone with a broker.
  void on_resumed(uint32_t stage);
  // Whether they can go on without replicas that are lost: they are of that step alone, and nobody fetches
  // them; and without the parts of their stages.
  bool can_leave_out(uint64_t step) const;
  void leave_out(const Absence& absence);

  bool is_gated(uint64_t step) const;        // it is committed only with one that is not whole
  bool hold_the_run_up() const;              // it does not go on without one of them
  bool has(uint64_t sequence) const;         // that of the command
  std::vector<uint64_t> sequences() const;   // of their commands
  bool has_whole(uint64_t committed) const;  // the first one is, of a step up to there
  std::optional<Saving> saving(
      const std::vector<Bytes>& bytes) const;  // the oldest checkpoint; `bytes` by stage
  MissingReports missing_reports() const;      // who owes a part of the oldest one that lacks any
  // Of those that stages upload, and that need not outlive the broker: the blobs of the parts that were
  // reported; and when the oldest began, since when other parts may be on their way.
  void add_reported(std::vector<Digest>& blobs) const;
  std::optional<Instant> uploading_since() const;

 private:
  std::deque<Round> rounds_;
};

}  // namespace weft::broker
