// Who is to blame for a run that gets no further. Nobody sees inside a machine: what is known is what each
// stage owes, how much it says to have computed, and who was there the last times. Pure.
//
// A stage that stops has done the least: those behind it went on until they had as many microbatches under
// way as they may, those before it until nothing came any more. One that computes and says nothing owes what
// the others have said. One that computes and sends nothing makes its neighbour look like that; so each stall
// leaves marks on all that it does not clear, and whoever has most of them is tried first: an honest peer
// that was blamed is replaced, who held the run up is there again. Where nobody is left to replace, those
// come back that have fewer marks.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/digest.h"

namespace weft::broker {

// What a run waits for.
struct MissingReports {
  std::vector<uint32_t> stages{};  // that owe it, ascending; none: it is not known who does
  // Each owes what it could have said without the others, as its part of a snapshot; else it may lack what
  // another should have sent.
  bool is_own = false;
  // Any of them may lack what any other should have sent: replicas are to agree.
  bool is_mutual = false;
};

bool all_said(const std::vector<bool>& said);
// Of the stages that have not said it; `said`: by stage.
MissingReports missing_reports_of(const std::vector<bool>& said, bool is_own);

struct StalledStage {
  PeerId peer;
  uint64_t segments = 0;  // that it says to have computed
  uint32_t replica = 0;   // whose pipeline it is a stage of; its stages are in order
};

using StallMarks = std::map<PeerId, uint32_t>;

struct Suspects {
  std::vector<uint32_t> stages{};  // the likeliest first
  size_t certain = 0;              // of these: what they owe is theirs alone
  StallMarks marks{};              // that this stall adds
};

// `marks`: of the stalls before. `stages`: of the run, not empty.
Suspects suspects_of(const MissingReports& missing, std::span<const StalledStage> stages,
                     const StallMarks& marks);

}  // namespace weft::broker
