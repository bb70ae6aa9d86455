// What a peer says to the broker.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "base/units.h"
#include "plan/seat.h"
#include "proto/hello.h"
#include "proto/stage.h"
#include "replicas/mean_check.h"

namespace weft::proto {

// How far a stage's compute has come, the task at hand included: what a peer is as fast as.
struct StageWork {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t segments_done = 0;  // of the training program, since the stage began
  double seconds_busy = 0;     // computing them
};
// How far the upload of a stage's part of a checkpoint has come. What the broker had already is among it; how
// many bytes there are in all the broker knows.
struct StageSaving {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t step = 0;
  Bytes saved{};  // of its tensors, as they lie in memory
};
struct Heartbeat {
  uint64_t sequence = 0;
  Bytes memory_free{};
  std::optional<StageWork> work{};
  std::optional<StageSaving> saving{};  // of the oldest that is under way
};
// Give me no more work, and take mine away when you can.
struct Drain {
  std::string reason{};  // for people: "paused by its owner"
  bool returns = false;  // it will be back
};

struct StageReady {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  Bytes persistent{}, microbatch{};  // device memory taken; of one microbatch in flight
  // Of a follower (replicas::ReplicaTerms): what the others have is still on its way. It says so once more,
  // without this, when all of that is there and what they have agreed on since is taken; and each time that
  // it resumes after that.
  bool follows = false;
};
// The answer to ResumeStage. Every report that may not have been settled follows, in order.
struct StageResumed {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t last_sequence = 0;        // of the commands that came
  Bytes persistent{}, microbatch{};  // as StageReady said; 0 before minor version 12: unknown
};
// All tensors of a StandBy are here; or, from minor version 6 on, they cannot be had.
struct StandingBy {
  JobNumber run = 0;
  uint64_t step = 0;
  std::optional<Error> failure{};   // instead
  uint64_t list = 0;                // as the StandBy said
  std::optional<Digest> damaged{};  // with a failure: a blob that came with other bytes than its name says
};
// The stage cannot go on: kernels, memory, data out of bounds, a neighbour that cannot be reached.
struct StageFailed {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  Error error{};
  std::optional<plan::Seat> unreachable{};  // the fault is that link's
  bool permanent = false;                   // of the job, not of this peer: another one would fail as well
  bool diverged = false;                    // numbers that are not finite would have come to be learnt from
  uint64_t step = 0;                        // in which they came, over the link to `unreachable`; 0: unknown
  std::optional<Digest> damaged{};          // a blob that came with other bytes than its name says
};

enum class LinkWay : uint8_t { Unsaid = 0, Direct = 1, Relay = 2 };
struct LinkUse {
  plan::Seat seat{};           // the other end
  uint64_t bytes_sent = 0;     // since the last report
  double seconds_waiting = 0;  // compute idle because nothing had come from there
  // Of the tensors that came from there since the last report and were large enough to be timed, from their
  // first bytes to their last: all together, and the fastest. 0: there were none.
  uint64_t bytes_timed = 0;
  double seconds_timed = 0;
  double fastest_bytes_per_second = 0;
  // Of the tensors that a codec encoded for it since the last report: their bytes before and after, and of
  // those that were looked at (the first microbatch of each step) how many there were and the sum of their
  // relative errors, ||x - decoded|| / ||x||.
  uint64_t bytes_dense = 0, bytes_encoded = 0;
  uint32_t errors = 0;
  double error_sum = 0;
  LinkWay way = LinkWay::Unsaid;  // by which tensors travel now
};
struct StepReport {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t step = 0;
  std::vector<double> losses{};   // by microbatch; from the stage that owns the loss
  std::vector<double> squares{};  // sums of squares of gradients, in the order of this stage's parameters
  bool updated = false;           // false: squares only, waiting for GradientNorm
  double seconds_busy = 0;        // compute
  double seconds = 0;             // since the step before
  std::vector<LinkUse> links{};
  // The ledger: where in the endless sequence of samples each microbatch began, from stages that read data.
  std::vector<uint64_t> sample_positions{};
  bool statistics_diverged = false;  // a running statistic of this stage is not finite
  // Of a step with which replicas have agreed, of a stage that takes means by a codec: what it owes of them
  // then, as the root of a tree of hashes (replicas/mean_check.h), for each agreement that is over with it.
  std::vector<Digest> owed{};
};
// The answer to ProbeLink: how fast bytes came from there.
struct ProbeReport {
  uint64_t round = 0;
  PeerId peer{};
  double bytes_per_second = 0;
  Duration round_trip{};  // the least of several
  bool relayed = false;
  std::optional<Error> failure{};  // instead; Unavailable and Timeout: there was no way between the two
};
// Of replicas that make local steps, what a broker keeps of their checkpoint beside its tensors.
struct LocalPoint {
  uint64_t steps = 0;  // of the run, of all replicas together; the checkpoint's own is an inner one
  std::vector<uint64_t> skipped_steps{};  // by replica: inner steps up to it without an update
  replicas::Inherited inherited{};        // what of its tensors stands for others, which were lost
  std::vector<replicas::StepRange>
      given_again{};  // as replicas::LocalSteps has it, of who goes on from there
  bool operator==(const LocalPoint&) const = default;
};
struct CheckpointReport {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t step = 0;
  std::vector<TensorReference> tensors{};  // all uploaded, or, of a direct copy, all here
  std::optional<Error> failure{};          // instead: why it could not be uploaded; the stage goes on
  uint64_t skipped_steps = 0;              // of those up to `step`: without an update
  std::optional<LocalPoint> local{};       // where a broker keeps it; no stage says it
};
struct EvaluationReport {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t step = 0;
  uint32_t first_microbatch = 0;
  // By microbatch of the command, from the stage that owns the output; empty elsewhere. `loss` and `counted`
  // have a number for each term of the loss.
  std::vector<double> loss{}, correct{}, counted{};
};
// Of a Compare: a number for each pass.
struct ComparisonReport {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t step = 0;              // as in the command
  std::vector<double> losses{};   // from the stage that owns the loss; empty elsewhere
  std::vector<double> squares{};  // sums over the stage's parameters of what gradients then were
};
// Of a LeaveOut. Each stage that is not left out answers it once; while one has not, nothing counts of what
// the replicas agree on.
struct ReplicasLeftOut {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t step = 0;      // as in the command
  uint64_t sequence = 0;  // the same
  // The stage has agreed on that with the lost ones; or it lacks something of theirs that belongs to an
  // agreement in which they have a part.
  bool too_late = false;
};
// Instead of a mean, or of taking means: what a replica has sent is not added up, or not taken. The stage
// does neither until the run goes on without that replica.
struct DifferenceRefused {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t step = 0;     // after which the replicas agree
  uint32_t replica = 0;  // whose it is
  double ratio = 0;      // its norm is so many times the usual one; 0: it is not finite
};
// The answer to a CheckMean.
struct MeanPiece {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t step = 0;      // as in the command
  uint64_t sequence = 0;  // the same
  replicas::ShownPiece shown{};
};
struct PredictionReport {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint32_t microbatch = 0;
  std::vector<TensorReference> outputs{};  // key: the output's name, slot None; uploaded
};
struct PeerLog {
  std::string text{};  // one line for the broker's operator
};

}  // namespace weft::proto
