// Who takes which stage: of a plan some of whose peers are gone, and of a run that peers stand by for. Plain
// functions: the same question has the same answer.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "proto/messages.h"

namespace weft::broker {

struct StageToPlace {
  PeerId peer{};       // who had it
  int64_t memory = 0;  // bytes that it takes on a device
  proto::DeviceClass device_class{};
  bool pinned = false;  // only who had it may have it
  std::string owner{};  // not empty: only this owner's machines may have it
};
struct Applicant {
  PeerId peer{};
  proto::DeviceClass device_class{};
  int64_t memory = 0;                          // bytes that it offers
  std::map<uint32_t, uint64_t> standing_by{};  // stages whose tensors it holds: after which step
  std::string owner{};                         // never empty where stages have one
};

// By stage an index into the applicants: how long a step then takes, to compare placements by.
using StepSeconds = std::function<double(std::span<const uint32_t> placed)>;

// By stage, an index into `applicants`, each at most once. Who had a stage and is there keeps it. The others
// go, where there is a choice, to one of the stage's fingerprint; then to where a step takes least, when
// `step_seconds` is given, a stage that nobody stands by for counting as a tenth more, once; then to one that
// stands by for it, with the newest tensors; then to one that runs the same ops; other fingerprints come
// last, and not at all with `equal_bits`; always with memory for it. A pinned stage goes to nobody else, one
// of an owner to nobody else's machine. Nothing: it cannot be done.
std::optional<std::vector<uint32_t>> place_again(const std::vector<StageToPlace>& stages,
                                                 const std::vector<Applicant>& applicants,
                                                 bool equal_bits = false,
                                                 const StepSeconds& step_seconds = {});

struct StageToHold {
  int64_t bytes = 0;   // of its tensors
  int64_t memory = 0;  // that it would take if it came to it
  std::string fingerprint{};
  std::string owner{};  // not empty: only this owner's machines may hold it
  dag::BackendTraits traits{};
};
struct Holder {
  int64_t memory = 0;  // bytes that it offers
  int64_t free = 0;    // of these, not yet given to what it holds
  std::string fingerprint{};
  std::string owner{};
  dag::BackendTraits traits{};
};

struct DealtStages {
  std::vector<std::vector<uint32_t>> by_holder;
  std::vector<std::optional<uint32_t>> first;  // by stage, the holder that is always there if any is
};
// How many hold a stage at most: each is sent its bytes, over and over.
constexpr uint32_t kHoldersMax = 2;
// The stages that holders are to hold: dealt out in turn, so that each stage is held by as many as any
// other, or one more or less, as far as there is room, and by kHoldersMax at most. Holders are of the stage's
// fingerprint; where none of these is to be had, of its traits, then of any, unless `equal_bits`.
DealtStages deal_stages(const std::vector<StageToHold>& stages, std::vector<Holder> holders,
                        bool equal_bits = false);

}  // namespace weft::broker
