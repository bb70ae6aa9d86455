// The steps of a run: which are granted to its stages, what each stage says of them, what becomes of a step's
// gradient, and in which order steps are committed.
//
// Where the norm of a step's gradient is needed, or steps that are not finite are skipped, stages say what
// came out before they update and are told what to do: all of them the same. What they are told follows from
// what they said alone, so that a broker that was restarted, to which they say it again, tells them the same.
//
// Of replicas that make local steps each has a step of its own in an inner one, and decides it alone
// (inner_steps.h). All of it is committed together, and what is said of it is steps of the run. Replicas that
// add each step's gradients make one step together: here they are one, whose stages have shares of it.
// Pure: what a commit waits for beside the reports of a step its caller knows.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/run/claims.h"
#include "broker/run/inner_steps.h"
#include "broker/run/planned_run.h"
#include "broker/run/run_effects.h"
#include "broker/run/stalls.h"

namespace weft::broker {

class Steps {
 public:
  // `recorded`: the event log has steps of the run up to there.
  Steps(std::shared_ptr<const PlannedRun> plan, uint64_t after_step, uint64_t recorded);

  void start(Instant now) { last_commit_ = last_updated_ = now; }
  // Instead: what the last command of a broker before this one knew. `continue_at`: the first stage is back.
  void resume(uint64_t granted, uint64_t committed);
  void continue_at(Instant now) { last_commit_ = now; }

  void grant(Instant now, uint64_t step);
  // That replica was lost: nothing is heard of it any more, and nothing that it said counts.
  void leave_out(uint32_t replica);
  // The next step does not begin before.
  void hold_up_until(Instant now) { last_updated_ = now; }

  // What all stages of a replica do with a step's gradient.
  struct Decision {
    uint64_t step = 0;
    double norm = 0;
    bool skip = false;
  };
  struct Heard {
    bool is_repeat = false;                  // nothing new; else:
    std::optional<Divergence> divergence{};  // the run ends by it, and nothing else counts
    std::optional<Decision> decision{};      // to be told the stages `tell`, where there are any
    std::vector<uint32_t> tell{};
    bool is_updated = false;  // the stage has done the step
    bool is_whole = false;    // all of them have
    double seconds = 0;       // that it took since it could begin; 0: not known
  };
  // `may_repeat`: the stage came back since, and may not know that it said this before. InvalidArgument: it
  // breaks the protocol, and nothing has changed but what it said rightly.
  Result<Heard> on_report(Instant now, uint32_t stage, const StageClaims& claims,
                          const proto::StepReport& report, bool may_repeat);

  // The step after the last committed one, once every stage has done it.
  std::optional<uint64_t> next_done() const;
  struct Committed {
    std::optional<proto::JobEvent> event{};  // nothing: whoever was to make the step was left out
    bool is_repeat = false;                  // the event log has it already
    std::optional<Divergence> divergence{};  // so many in a row were skipped
  };
  // REQUIRES: next_done().
  Committed commit(Instant now);

  // What a stage that came back was told, or would have been, of steps that it has not done.
  std::vector<Decision> decisions_for(uint32_t stage) const;
  // Who owes what of the next step; nobody, when it is not the steps that the run waits for.
  MissingReports missing_reports() const;

  uint64_t granted() const { return granted_; }
  uint64_t committed() const { return committed_; }
  // The last one after which replicas agreed, and when that was committed.
  struct Agreed {
    uint64_t step = 0;
    Instant at{};
  };
  const std::optional<Agreed>& agreed() const { return agreed_; }
  uint64_t recorded() const { return recorded_; }
  bool all_granted() const { return granted_ == plan_->training.steps; }
  double last_loss() const { return last_loss_; }  // that was finite
  double samples_per_second() const {
    const double samples = uint64_t{plan_->training.batch_size} * inner_.makers();
    return commit_seconds_ > 0 ? samples / commit_seconds_ : 0;
  }
  const std::vector<proto::StageStatus>& stages() const { return stages_; }

  // Its invariants. Internal: which one does not hold.
  Status check() const;

 private:
  // A replica's own step.
  struct OwnStep {
    uint64_t number = 0;     // of the run
    uint64_t scheduled = 0;  // where the schedule of the learning rate is read
    std::vector<double> losses{};
    std::vector<double> squares{};     // by parameter of the whole graph
    bool statistics_diverged = false;  // some stage's
    bool is_decided = false;
    double norm = 0;
    bool skip = false;
  };
  struct InProgress {
    std::vector<bool> squares_in, updated, positions_in;  // by stage
    std::vector<std::optional<OwnStep>> own{};            // by replica; nothing: it makes none
  };
  InProgress& in_progress(uint64_t step);
  void leave_out(uint32_t replica, InProgress& step) const;
  Status take_squares(uint32_t stage, const StageClaims& claims, const proto::StepReport& report,
                      InProgress& step) const;
  Status check_ledger(uint32_t stage, const proto::StepReport& report, InProgress& step) const;
  Status hear_numbers(uint32_t stage, const StageClaims& claims, const proto::StepReport& report,
                      InProgress& step, Heard& heard) const;
  Status hear_first(uint32_t stage, const StageClaims& claims, const proto::StepReport& report,
                    InProgress& step, Heard& heard) const;
  bool have_all_said(uint32_t replica, const std::vector<bool>& said) const;
  void decide(uint64_t number, uint32_t replica, InProgress& step, Heard& heard) const;
  std::string name_of(const OwnStep& own, uint32_t replica) const;
  std::optional<std::string> count_skips(const InProgress& step);
  double seconds_of(uint64_t number, Instant now);
  proto::JobEvent event_of(uint64_t number, const InProgress& step, double elapsed) const;

  std::shared_ptr<const PlannedRun> plan_;
  InnerSteps inner_;
  std::vector<uint32_t> replica_of_;            // by stage
  std::vector<proto::MicrobatchShare> shares_;  // likewise
  uint64_t granted_, committed_;
  std::optional<Agreed> agreed_{};
  uint64_t recorded_;                       // of the run
  std::map<uint64_t, InProgress> steps_;    // not committed, of which something was said
  std::map<uint64_t, Instant> granted_at_;  // by the step that a grant ends with
  std::vector<proto::StageStatus> stages_;
  std::vector<bool> left_out_;              // by replica
  std::vector<uint64_t> skipped_in_a_row_;  // by replica, up to the last committed one
  double last_loss_ = 0;
  double commit_seconds_ = 0;  // between the commits of steps, smoothed
  Instant last_commit_{}, last_updated_{};
};

}  // namespace weft::broker
