// A job that has not ended. Its phase is a variant, each with what only it has; what lasts from phase to
// phase stands beside it. Jobs that have ended are the store's.
//
//   Waiting --> Planning --> Loading --> Running --> (ended)
//      ^           |            |           |
//      '-----------+------------+-----------'   a peer is lost, a plan cannot be had, it moves
//
// It ends from any of them, by way of Keeping where its newest copy is not durable yet.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "broker/jobs/recovery_points.h"
#include "broker/pool/pool.h"
#include "broker/run/drift.h"
#include "broker/run/guard.h"
#include "broker/run/run.h"
#include "broker/run/slowness.h"

namespace weft::broker {

// A stage of a plan that somebody has.
struct StageAtWork {
  bool ready = false;
  bool here = true;       // false: its peer has to resume it first
  bool left_out = false;  // its replica was lost: the peer has it no more
  bool has_all = true;    // when it was ready: a follower's stage may lack what the others have
  int64_t memory = 0;     // what it takes on a device, as its peer said
  WorkWindow work{};
  double times = 1;  // as it was planned with
  bool slowness_said = false;
  std::set<proto::Secret> relays_waiting{};  // somebody waits for it there; it is told when it is back
};

// A plan and who carries it out.
struct Crew {
  std::shared_ptr<const PlannedRun> plan;
  std::vector<StageAtWork> stages;                  // in the plan's order
  std::vector<int64_t> loaded_bytes, copied_bytes;  // by stage (planned_run.h)

  std::optional<uint32_t> stage_of(const PeerId& peer) const;
  // By stage, what it takes on a device.
  std::vector<int64_t> memory() const;
  bool all_here() const;
  bool all_ready() const;
};

namespace phase {
struct Waiting {                             // for peers, for links to be measured, for a better time
  std::optional<Instant> not_before{};       // a pause after losses
  uint64_t infeasible_with = 0;              // the pool for which there was no plan
  uint64_t unplaceable_with = 0;             // the pool for which the plan before could not be placed again
  std::optional<Instant> forgive_at{};       // when those that failed it may try again
  std::optional<Instant> measuring_since{};  // links
  // The broker before ended while the job was planned; two did, with nothing of it planned between them.
  bool was_being_planned = false, ends_brokers = false;
  uint64_t keeps = 0;  // the step of the copy that is made durable meanwhile
};
struct Planning {
  Planned planned = Planned::Anew;
  uint64_t pool = 0;            // its version then: who came since is not in the answer
  bool lacks_who_came = false;  // whose links were still to be measured
  bool places_again() const { return planned == Planned::PlacedAgain; }  // the plan before
};
struct Loading {
  Crew crew;
  Instant since{};
};
struct Running {
  Crew crew;
  std::unique_ptr<Run> run{};
  std::optional<Instant> away_since{};  // stages have to resume
  bool restarted = false;               // because the broker was
  Instant since{};                      // all its stages are there
  Instant computed_at{};                // when somebody last said that it has computed more
  Duration loading_took{};
  bool is_at_standstill = false;  // once it is over for want of progress: nobody computed, either
  bool over = false;              // what it came to is settled before the step ends
  bool moving = false;            // stops after a snapshot to go on with other peers
  bool direct_said = false;       // that copies go straight to peers
};
struct Keeping {  // has no peers any more, and ends so once its newest copy is durable
  proto::JobState state{};
  std::string reason{};
  std::optional<Instant> again_at{};  // the disk was full
};
struct Ended {};  // leaves the book before the step ends
}  // namespace phase
using Phase = std::variant<phase::Waiting, phase::Planning, phase::Loading, phase::Running, phase::Keeping,
                           phase::Ended>;

struct Job {
  JobSubmitted submitted{};
  // Its plan has some: a submission that was recorded long ago does not say that it compresses.
  bool has_codecs = false;
  Phase phase{};
  proto::JobState state = proto::JobState::Queued;
  std::string reason{};
  proto::PlanVersion plan_version = 0;
  proto::PlanVersion recorded_version = 0;  // of the last JobChanged
  uint64_t steps = 0, step = 0;             // of the run, as everything else that people are told
  uint32_t microbatch_size = 0;             // of the first run that started; every other keeps it
  replicas::ChosenTerms chosen{};           // the same, of replicas with local steps
  RecoveryPoints points{};
  std::vector<proto::PredictionReport> predictions{};  // each stage's of each microbatch once
  std::optional<proto::JobResult> result{};

  struct EventLog {  // what stands in it
    uint64_t last_event = 0;
    uint64_t recorded_step = 0, evaluated_step = 0;
    std::map<std::string, double> metrics{};  // of the last evaluation
    double loss = 0;                          // of the last step
    std::map<uint64_t, double> losses{};      // of recorded steps that may have to be done again
  } log{};
  // The plan before, for which peers are sought.
  struct Previous {
    std::shared_ptr<const PlannedRun> plan{};
    std::vector<int64_t> memory{};  // by stage
  } previous{};
  // What others would not add up of a replica's in a round (proto::DifferenceRefused).
  struct Refusal {
    std::set<PeerId> accused{};  // whose it was: of its stages one at least lies, and perhaps no other
    std::set<PeerId> by{};       // who did so
  };
  struct Losses {
    uint64_t recoveries = 0;
    uint32_t in_a_row = 0;  // since the last step or checkpoint
    uint64_t at_step = 0;
    uint32_t stalls = 0;       // times that it made no progress within its deadline, which doubles with each
    uint32_t standstills = 0;  // the same, where nobody computed any more; it doubles with every other
    StallMarks stall_marks{};
    std::vector<Refusal> refusals{};
    // How often most replicas held other bytes than a peer's, or a mean that it took was another.
    std::map<PeerId, uint32_t> outvoted{};
    std::set<std::set<PeerId>> quarrels{};  // two who said different things of what one had sent the other
    struct Late {
      uint32_t times = 0;
      Instant rests_until{};  // until then it gets no part in the job
      bool is_resting() const { return rests_until != Instant{}; }
    };
    std::map<PeerId, Late> late{};     // whose replica held the others up
    std::set<PeerId> blamed{};         // of those that are excluded: for a stall
    std::optional<Instant> lost_at{};  // until the first step after a loss
    // It went back because of this step, as its run counts, and has not got past it; 0: it did not.
    uint64_t diverged_at = 0;
    std::set<PeerId> excluded{};            // could not take a stage of this job
    std::set<PeerId> called_hopeless_by{};  // who said that any peer would fail
    std::set<PeerId> refused_by{};          // whose device lacks what it needs
    bool rests(const PeerId& peer) const;
    bool end_rests(Instant now);  // whether anybody's has ended
    bool judged_alone = false;    // a peer was replaced for being slow, with nothing to compare it with
  } losses{};
  struct Bits {
    std::optional<std::string> fingerprint{};  // so far
    bool are_equal = true;
    bool difference_said = false;
  } bits{};
  struct Serving {
    proto::ServedModel model{};  // of a job that serves; until its first plan the name alone is known
    bool has_name = false;       // nobody else serves under it until this job has ended
  } serving{};
  bool stop_requested = false;    // by its user
  std::vector<PeerId> move_to{};  // planned anew with these, once it has stopped
  Drift drift{};
  Guard guard{};
  uint32_t gentler = 0;         // links, because of what the guard said
  bool needs_who_came = false;  // there was no plan without those whose links were still to be measured
  bool harm_said = false, upload_failure_said = false, diverged = false;

  proto::JobNumber number() const { return submitted.job; }
  std::string text() const { return std::to_string(submitted.job); }
  bool has_ended() const { return std::holds_alternative<phase::Ended>(phase); }
  phase::Waiting* waiting() { return std::get_if<phase::Waiting>(&phase); }
  phase::Planning* planning() { return std::get_if<phase::Planning>(&phase); }
  phase::Loading* loading() { return std::get_if<phase::Loading>(&phase); }
  phase::Running* running() { return std::get_if<phase::Running>(&phase); }
  const phase::Running* running() const { return std::get_if<phase::Running>(&phase); }
  phase::Keeping* keeping() { return std::get_if<phase::Keeping>(&phase); }
  // Of a job that loads or runs.
  Crew* crew();
  const Crew* crew() const;
  bool serves() const { return !serving.model.name.empty(); }
  bool is_moving() const { return running() != nullptr && running()->moving; }

  bool excludes(const std::string& peer) const;  // by its user's wish
  bool may_send(const Peer& peer) const;         // it reads what the job's links carry
  bool can_skip(const Peer& peer) const;         // steps, if the job does
  bool is_new_enough(const Peer& peer) const;    // for the job's terms
  bool knows_ops(const Peer& peer) const;        // of the job's graphs, as far as they were planned
  bool suits(const Peer& peer) const;            // all that, and its device computes as the job wants
};

// From the first on, microbatches whose outputs are all there.
uint32_t predicted_microbatches(const Job& job, const PlannedRun& plan);
RunBegin begin_of(const Job& job, const PlannedRun& plan);
// The device class that a stage was made for.
proto::DeviceClass class_of(const PlannedRun& plan, size_t stage);

}  // namespace weft::broker
