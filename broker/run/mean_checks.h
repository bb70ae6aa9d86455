// Means on which replicas have agreed are taken once more, of some pieces, here where nobody gains by another
// one (replicas/mean_check.h). Which ones is drawn when an agreement is committed: by then all means of it
// were sent, and their owners had said what they owe. No snapshot from there on is whole before all of these
// are right, so that the run can go back to one before. Pure but for its options' functions.
//
// Bounds: MeanCheckOptions::each pieces of each agreement, of which stages show 16 KiB each; and of each
// stage a hash for each of the last agreements.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "broker/run/inner_steps.h"
#include "broker/run/planned_run.h"
#include "broker/run/run_effects.h"
#include "broker/run/run_options.h"
#include "broker/run/stalls.h"
#include "proto/agreed_weights.h"

namespace weft::broker {

class MeanChecks {
 public:
  MeanChecks(std::shared_ptr<const PlannedRun> plan, const MeanCheckOptions& options);

  // What a stage owes after a step that it has done. `settled`: with which the replicas end, if they were
  // told. InvalidArgument: it does not say it of each agreement that is over with the step; or it was to show
  // a piece before that step, which its replica has made, and has not.
  Status hear(uint32_t stage, const proto::StepReport& report, std::optional<uint64_t> settled);
  // That step is committed: what is to be looked at, each by a command of its own.
  std::vector<proto::MeanCheck> draw(uint64_t committed, std::optional<uint64_t> settled);
  // That command was written, by this broker or by one before.
  void begin(const proto::Command& command);
  // Replicas are left out: what they would show is not there.
  void give_up() { under_way_.clear(); }

  bool awaits(uint32_t stage, uint64_t sequence) const;
  // What does not fit, once all have shown theirs. REQUIRES: awaits().
  std::optional<WrongMean> on_report(uint32_t stage, const proto::MeanPiece& report);

  bool empty() const { return under_way_.empty(); }
  bool is_settled(uint64_t sequence) const;
  // Of these, the last one before those that are not known to be right.
  uint64_t right_up_to(uint64_t committed) const;
  MissingReports missing_reports() const;  // of the first

 private:
  struct Tensor {
    proto::AgreedTensor agreed{};
    size_t elements = 0;
    bool is_statistic = false;
    size_t first_leaf = 0;
  };
  struct UnderWay {
    uint64_t sequence = 0, step = 0;  // of the command
    proto::MeanCheck check{};
    std::vector<std::optional<replicas::ShownPiece>> shown{};  // by replica
  };
  const replicas::ReplicaTerms& terms() const { return inner_.local()->terms; }
  bool are_made() const { return options_.draw && inner_.are_local() && terms().makers() > 1; }
  std::vector<uint64_t> agreements_with(uint64_t step, std::optional<uint64_t> settled) const;
  std::optional<uint32_t> stage_of(const Tensor& tensor, uint32_t replica) const;
  bool is_whole(const UnderWay& one) const;
  replicas::CheckedPiece piece_of(const UnderWay& one) const;
  std::optional<WrongMean> look_at(const UnderWay& one);

  std::shared_ptr<const PlannedRun> plan_;
  InnerSteps inner_;
  MeanCheckOptions options_;
  std::vector<Tensor> tensors_;                   // by number
  std::vector<size_t> leaves_;                    // by stage: of its tree; 0: it owes nothing
  std::vector<std::map<uint64_t, Digest>> owed_;  // by stage: roots, by agreement
  std::deque<UnderWay> under_way_;
  std::optional<uint64_t> wrong_{};  // an agreement
};

}  // namespace weft::broker
