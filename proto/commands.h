// What the broker says to a peer, beside the assignment (proto/stage.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/units.h"
#include "proto/hello.h"
#include "proto/stage.h"
#include "replicas/left_out.h"

namespace weft::proto {

// What a stage does next; a stage carries its commands out strictly in the order in which they come.
enum class CommandKind : uint8_t {
  Advance = 0,     // run training steps up to and including `step`
  Checkpoint = 1,  // upload the state after `step`, which is the last one granted
  Evaluate =
      2,  // the evaluation program over [first_microbatch, + microbatches), with the weights after `step`
  Predict = 3,  // the prediction program over these microbatches
  Finish = 4,   // nothing more: keep quiet until ReleaseStage
  // Copy the state after `step`, which is the last one granted, keep it, and upload it to where it need not
  // survive the broker: what a run goes back to when a peer is lost.
  CopyState = 5,
  // The first microbatch of the step after `step`, which is the last one granted, forward and backward with
  // the weights as they are, over dense links and over the codecs: what they do to the loss and to the
  // gradient. Nothing is updated. Only where a step has several microbatches.
  Compare = 6,
  // Of replicas that make local steps: they agree after `step`, which is the last one granted and a round's
  // end, without those of `left_out`, which were lost; and make none after it. Where the round before that
  // overlaps it, they have no part in that one either (replicas::first_left_out). Carried out when it comes,
  // before what came before it is done, and answered by ReplicasLeftOut. Where `step` is committed, all have
  // agreed with them: then it says only that they are gone, so that nobody waits for their links, and a
  // broker that is restarted knows.
  LeaveOut = 7,
  // Likewise: all have the same weights after `step`, which is the last one granted and the end of a round
  // that would overlap the next one; and make none after it. Carried out when it comes.
  Settle = 8,
  // Of replicas that make local steps, which have agreed: what each has of a piece of a tensor, as `check`
  // says, for the broker to take the mean once more. Answered by MeanPiece, by stages that have the tensor.
  CheckMean = 9,
};
// Which piece (replicas/mean_check.h) of which of the means on which all have agreed.
struct MeanCheck {
  uint64_t agreement = 0;  // after that step, with which a round ends
  uint32_t tensor = 0;     // AgreedTensor::number
  uint32_t piece = 0;
  bool operator==(const MeanCheck&) const = default;
};
// The passes of a Compare, in order, as microbatches of that step. The gradient of Added is added to Dense's;
// Compressed is the same as Added, to the bit, with a gradient of its own.
enum class ComparisonPass : uint32_t { Dense = 0, Added = 1, Compressed = 2 };
inline constexpr uint32_t kComparisonPasses = 3;
inline constexpr uint32_t kComparisonMicrobatch = 1u << 31;  // of the first pass
constexpr bool is_comparison(uint32_t microbatch) {
  return microbatch - kComparisonMicrobatch < kComparisonPasses;
}
constexpr ComparisonPass comparison_pass(uint32_t microbatch) {  // REQUIRES: is_comparison
  return static_cast<ComparisonPass>(microbatch - kComparisonMicrobatch);
}
// The commands of one plan version are a script: counted from 1, each stage gets all of them, in order. The
// broker makes a command durable before it sends it, and a stage that comes back says how far it has got, so
// that a broker that was restarted goes on where it was.
struct Command {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  CommandKind kind = CommandKind::Advance;
  uint64_t step = 0;
  uint32_t microbatches = 0;
  uint32_t first_microbatch = 0;
  uint64_t sequence = 0;  // in the script
  // What the broker will never ask about again: StepReports up to `committed`; other reports on commands up
  // to `settled`; snapshots of steps before `keep_from`.
  uint64_t committed = 0, settled = 0, keep_from = 0;
  // Of a CopyState: the copy stays with the stage, for the peers that stand by for it to fetch, and is
  // reported as soon as it is there.
  bool direct = false;
  bool stays = false;            // of a direct one: nobody fetches it. For the broker, after a restart
  replicas::LeftOut left_out{};  // of LeaveOut
  bool with_followers = false;   // of a snapshot: stages of followers have a part in it, too
  MeanCheck check{};             // of CheckMean
};
// With clip_norm, and where steps may be skipped: the norm of the whole gradient of `step`, for the update.
struct GradientNorm {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t step = 0;
  double norm = 0;    // of the mean gradient, before clipping
  bool skip = false;  // no update: not all of the step is finite (dag::OnDivergence::Skip)
};
struct ReleaseStage {
  JobNumber run = 0;
  PlanVersion plan_version = 0;  // this one and all before it
  std::string reason{};
};
// Somebody waits at the relay with this ticket: come there.
struct RelayInvitation {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  Secret ticket{};
};
// To a peer that came back holding a stage: go on with it.
struct ResumeStage {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
};
// To a peer of the pool: have these tensors at hand, fetched within the rate, for they may be needed at once.
// The list before stays until this one is complete. No tensors: forget the run's.
struct StandBy {
  JobNumber run = 0;
  uint64_t step = 0;
  std::vector<TensorReference> tensors{};
  uint64_t rate = 0;                  // bytes a second; 0: no limit
  std::vector<BlobSource> sources{};  // each tensor at most once
  uint64_t list = 0;                  // counts the lists that the peer was given
};
struct HeartbeatAck {
  uint64_t sequence = 0;
};
// To a peer of the pool: measure the link to that one, which is told the same. Ends what was asked before.
struct ProbeLink {
  uint64_t round = 0;  // the broker's number for it, shown by all that is said about it
  PeerId peer{};       // the other end
  bool dials = false;  // this side opens the connection
  std::vector<std::string> addresses{};
  Secret relay_ticket{};
  std::string region{};    // of the other peer, as it says
  uint64_t bytes_max = 0;  // to send, and to receive
  Duration time_max{};     // for each way, once there is a connection
  Duration deadline{};     // for all of it
};

}  // namespace weft::proto
