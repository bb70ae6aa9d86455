// Who takes which stage: of a plan some of whose peers are gone, and of a run that peers stand by for. Plain
// functions: the same question has the same answer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/digest.h"

namespace weft::broker {

struct StageToPlace {
  PeerId peer{};       // who had it
  int64_t memory = 0;  // bytes that it takes on a device
};
struct Applicant {
  PeerId peer{};
  bool same_kind = true;                       // runs the graphs of this plan at all
  bool same_fingerprint = true;                // and makes the same bits
  int64_t memory = 0;                          // bytes that it offers
  std::map<uint32_t, uint64_t> standing_by{};  // stages whose tensors it holds: after which step
};

// By stage, an index into `applicants`, each at most once. Who had a stage and is there keeps it. The others
// go, where there is a choice, to one that stands by for the stage, with the newest tensors; then to one of
// the same fingerprint; then to any of the same kind; always with memory for it. Nothing: it cannot be done.
std::optional<std::vector<uint32_t>> place_again(const std::vector<StageToPlace>& stages,
                                                 const std::vector<Applicant>& applicants);

struct StageToHold {
  int64_t bytes = 0;   // of its tensors
  int64_t memory = 0;  // that it would take if it came to it
};
struct Holder {
  int64_t memory = 0;  // bytes that it offers
  int64_t free = 0;    // of these, not yet given to what it holds
};

// By holder, the stages that it is to hold: dealt out in turn, so that each stage is held by as many as any
// other, or one more or less, as far as there is room.
std::vector<std::vector<uint32_t>> deal_stages(const std::vector<StageToHold>& stages,
                                               std::vector<Holder> holders);

}  // namespace weft::broker
