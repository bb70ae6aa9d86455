// What the broker must still know after a crash, as the lines it writes. The state machine makes records; a
// Store keeps them; after a restart the machine is built from what the store loads. Heartbeats and anything
// else that time makes worthless are never records.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "broker/run/planned_run.h"
#include "proto/messages.h"

namespace weft::broker {

// A key that showed a valid token once: known from then on. `uses` of a token counts these.
struct PrincipalAdmitted {
  PeerId principal{};
  proto::Role role = proto::Role::Peer;  // Peer, Submitter or Admin
  std::string name{};
  uint64_t token = 0;  // its id
  int64_t unix_ms = 0;
};
// It is not known any more: its token admitted too many that came after it (principals.h).
struct PrincipalForgotten {
  PeerId principal{};
  proto::Role role = proto::Role::Peer;
};
// By its operator, until it is lifted. `name` for people.
struct PeerBanned {
  PeerId peer{};
  std::string name{};
  bool banned = true;
};
struct JobSubmitted {
  proto::JobNumber job = 0;
  PeerId submitter{};
  proto::Encoded<proto::SubmitJob> submission = proto::SubmitJob{};
  int64_t unix_ms = 0;
};
// Why a job is planned, while it is: what a broker that was restarted counts by.
enum class Planned : uint8_t {
  Anew = 0,
  OnceMore = 1,     // for the broker before ended while the job was planned
  PlacedAgain = 2,  // others take the stages of the plan before
};
struct JobChanged {
  proto::JobNumber job = 0;
  proto::JobState state = proto::JobState::Queued;
  std::string reason{};
  proto::PlanVersion plan_version = 0;
  uint64_t step = 0;   // committed
  uint64_t steps = 0;  // in all; 0 while not known
  Planned planned = Planned::Anew;
};
// Every tensor that the run needs to go on after `step`. The last two of a job are kept.
struct CheckpointCommitted {
  proto::JobNumber job = 0;
  uint64_t step = 0;  // as the run's commands count
  std::vector<proto::TensorReference> tensors{};
  uint64_t skipped_steps = 0;  // of those up to `step`: without an update
  // Of replicas that make local steps, for which `skipped_steps` is the first's.
  std::optional<proto::LocalPoint> local{};

  // Steps of the run, which is how people count.
  uint64_t made() const { return local ? local->steps : step; }
  // The same for a replica. What is of one alone, or of another number of them, every replica goes on with.
  uint64_t skipped_by(uint32_t replica) const {
    return local && replica < local->skipped_steps.size() ? local->skipped_steps[replica] : skipped_steps;
  }
};
struct PredictionCommitted {
  proto::JobNumber job = 0;
  proto::PredictionReport report{};
};
struct ResultCommitted {
  proto::JobNumber job = 0;
  proto::JobResult result{};  // without `predictions`, which are records of their own, and without `model`
};
// Every stage of the plan is ready: from now on a broker that was restarted can go on with it. Takes the
// place of the job's plan before, and of its script.
struct RunStarted {
  proto::JobNumber job = 0;
  proto::PlanVersion plan_version = 0;
  std::shared_ptr<const PlannedRun> plan{};
  uint64_t diverged_at = 0;  // the step that the run before went back for (proto::RunPlan)
};
// The next line of the script. Lines up to command.settled are not needed any more.
struct CommandIssued {
  proto::JobNumber job = 0;
  proto::Command command{};
};
// The plan is no more: its stages were released.
struct RunEnded {
  proto::JobNumber job = 0;
};
// After the JobChanged that ended it: what users are told of it from now on. A JobChanged that opens it again
// takes this back.
struct JobEnded {
  PeerId submitter{};
  proto::JobStatus status{};
};
// What `logs` shows again: proto::JobEvent. The Step events are also the durable count of committed steps.
using Record = std::variant<PrincipalAdmitted, PrincipalForgotten, PeerBanned, JobSubmitted, JobChanged,
                            CheckpointCommitted, PredictionCommitted, ResultCommitted, proto::JobEvent,
                            RunStarted, CommandIssued, RunEnded, JobEnded>;

// What is left of all records: the state to start from.
struct StoredJob {
  JobSubmitted submitted{};
  JobChanged last{};
  std::vector<CheckpointCommitted> checkpoints{};      // at most two, newest last
  std::vector<proto::PredictionReport> predictions{};  // by microbatch, each once
  std::optional<proto::JobResult> result{};
  uint64_t last_event = 0;  // sequence
  std::optional<RunStarted> run{};
  std::vector<proto::Command> script{};  // of that run: not settled, in order
  uint64_t committed_step = 0;           // the last Step event's, also after the run went back; 0: none
  uint64_t evaluated_step = 0;           // the last Evaluation event's
  uint32_t microbatch_size = 0;          // of every run of it; 0: none was recorded
  replicas::ChosenTerms chosen{};        // of every run of it
};
struct StoredState {
  std::vector<PrincipalAdmitted> principals{};  // by tokens that are not revoked
  std::vector<PeerBanned> bans{};
  std::map<proto::JobNumber, StoredJob> jobs{};  // that have not ended
  proto::JobNumber next_job = 1;
};

}  // namespace weft::broker
