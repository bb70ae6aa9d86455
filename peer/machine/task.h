// What a stage is given to compute, and what came of it. The values that the machines, whoever runs tasks and
// the wire's keys share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/units.h"
#include "proto/messages.h"
#include "replicas/left_out.h"
#include "replicas/norm_guard.h"

namespace weft::peer {

// A microbatch of data, or of tensors that other stages send.
struct MicrobatchKey {
  proto::ProgramKind program = proto::ProgramKind::Train;
  uint64_t step = 0;
  uint32_t microbatch = 0;
  auto operator<=>(const MicrobatchKey&) const = default;
};

enum class TaskKind : uint8_t {
  Segment,   // run `segment` of the program for the microbatch
  Squares,   // sums of squares of the gradients; of a comparison, after each of its passes
  Update,    // squares too, when `with_squares`; of what the stage updates (proto::updated_parameters)
  Differ,    // where replicas with local steps agree: what this one has learnt since, for who adds it up
  Mean,      // of these, as they have come: for the other replicas
  Weigh,     // of the means that have come: whether one is out of all proportion
  Agree,     // take the weights that the means give, and go on from them, or by what was learnt since
  Show,      // for the broker, what the stage has of a piece of the means on which all have agreed
  Reduce,    // where replicas add each step's gradients: the sums of all their ranges, of what is owned here
  Gather,    // of the others: take the sums of their owners, or after Update the weights
  Snapshot,  // copy the state after `step`, for a checkpoint or a round of copies
  Pass,      // of a served model: the pass `step`, which has come
  Begin,     // at the entry of one: passes, for what was asked
};
struct Task {
  TaskKind kind = TaskKind::Segment;
  MicrobatchKey key{};  // for all but Segment only `step` counts
  uint32_t segment = 0;
  bool first_segment = false, last_segment = false;  // of the microbatch on this stage
  bool with_squares = false;
  double norm = 0;             // for Update with clip_norm
  bool skip = false;           // an Update that is none: what the step has changed is undone
  uint64_t skipped_steps = 0;  // for Update those before its step; of a Snapshot those in it
  uint64_t sequence = 0;       // of the command that it belongs to
  bool durable = true;         // of a Snapshot: for a checkpoint
  bool direct = false;         // of a Snapshot: others fetch it here
  // Of Differ, Mean, Weigh and Agree: who has no part in it any more; nullptr: all have. When others are left
  // out all come again, with an attempt of a higher number.
  std::shared_ptr<const replicas::LeftOut> left_out{};
  uint32_t attempt() const { return left_out ? left_out->attempt : 0; }
  proto::MeanCheck check{};  // of Show
  bool settles = false;      // of these: all have the same weights after that Agree
  bool ends_round = false;   // of these, and of a Gather after an Update: with it the step is done
};

// What a task gave, tensors aside.
struct TaskOutcome {
  Duration busy{};
  // Of outputs in the segment that was run. An evaluation of several losses gives one number each.
  std::vector<double> loss{}, correct{}, counted{};
  std::vector<double> squares{};
  std::vector<double> statistics{};  // sums of squares too, of running statistics; with `squares`
  // Of a Mean and a Weigh: what that replica sent is out of all proportion. Of the first no mean was taken.
  std::optional<replicas::Outlier> refused{};
  std::optional<Digest> owed{};                 // of an Agree, as StepReport::owed
  std::optional<replicas::ShownPiece> shown{};  // of a Show
  // At the entry of a served model: what became of requests, each's in order; passes that are under way;
  // whether Begin would find more to do at once; and what the ring did and holds.
  std::vector<proto::ServeProgress> served{};
  uint32_t under_way = 0;
  bool more = false;
  proto::ServeLoad load{};
};

}  // namespace weft::peer
