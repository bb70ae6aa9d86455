// What is asked of the planner, and what it answers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "dag/graph.h"
#include "dag/lower.h"
#include "dag/slots.h"
#include "plan/cluster.h"
#include "plan/compression.h"
#include "plan/critical_path.h"
#include "plan/equal_bits.h"
#include "plan/pin.h"
#include "plan/timeline.h"

namespace weft::plan {

struct PlanRequest {
  const dag::Graph* graph = nullptr;  // before lowering, with its backward phase when it trains
  // The graph as each class of devices runs it. Cuts fall where none of them is cut through. Empty: one
  // class, which runs `graph` as it is.
  std::vector<std::shared_ptr<const dag::Lowered>> classes{};
  uint32_t microbatches = 1;         // a step
  uint64_t samples = 0;              // a step, for the explanation; 0: it speaks of steps alone
  std::optional<uint32_t> stages{};  // nothing: as many as pay, at least one
  uint32_t optimizer_slots = 0;      // tensors beside each parameter: 0, 1 (momentum), 2 (Adam)
  dag::SlotType slot_type = dag::SlotType::Float32;
  uint32_t slots_among = 1;    // so many devices with the same parameters have a part of the slots each
  uint32_t gradient_sums = 1;  // likewise, for its gradient: 2 where ranges are added up apart
  // Likewise, for what replicas keep to agree: it lasts, no update reads it, and it lies in the host's
  // memory.
  uint32_t agreed_slots = 0;
  bool clips_norm = false;  // a step's updates wait until all its gradients are known
  bool evaluates = false;   // another program runs on the same weights: a microbatch of its own
  // Copies of the state are made between steps, at most at so many bytes a second of an uplink (0: without
  // limit); nothing: none.
  std::optional<uint64_t> copies{};
  EqualBits equal_bits = EqualBits::Prefer;
  ClusterView cluster{};          // the devices that may be used
  std::string strategy = "auto";  // a name of plan/strategy.h
  std::vector<Pin> pins{};        // kept whatever it costs
  double owner_share_max = 1;     // of the parameters, on one owner's machines: plan/owners.h; 1: any
  bool every_site = false;        // each holds an op with parameters: plan/sites.h
  Compression compression{};

  dag::BesideParameter beside() const { return {optimizer_slots, slot_type, agreed_slots, slots_among}; }
};

struct StagePlan {
  std::vector<uint32_t> devices{};  // indices into the cluster; one for now
  uint32_t microbatches_in_flight = 1;
  Bytes memory{};                  // on the device: persistent and all microbatches
  Bytes persistent{};              // of that, whatever runs
  Bytes microbatch{};              // of that, for each microbatch under way
  Bytes host_memory{};             // on the host, which may be the same: a copy of the state
  Duration forward{}, backward{};  // of one microbatch, compute alone
  bool pinned = false;             // it has ops that no other device may have
  // Backward makes the forward pass's values again from what the stage was given, instead of finding them
  // kept: dag::recompute of the stage's graph is what it runs. `repeated`: the part of `backward` that takes.
  bool recomputes = false;
  Duration repeated{};
};
struct PlannedLink {
  uint32_t from_stage = 0, to_stage = 0;
  Bytes bytes{};  // a microbatch, both phases, in this direction, as it travels
  Bytes dense{};  // without codecs
};
struct Plan {
  std::vector<uint32_t> stage_of_op{};  // by op of the graph: what dag::split takes
  std::vector<StagePlan> stages{};
  std::vector<PlannedLink> links{};
  std::vector<LinkCodec> codecs{};  // of those that do not stay dense
  Duration predicted_step{};
  Duration predicted_alone{};  // the whole job on the fastest of the devices, memory aside
  // With a number of stages asked for: the best with fewer, where that is faster.
  struct Fewer {
    std::vector<uint32_t> devices{};
    Duration predicted_step{};
  };
  std::optional<Fewer> fewer{};
  Timeline timeline{};
  std::vector<CriticalShare> critical{};  // what a step's length is made of
  // Where stages recompute: the same cut with all values kept; nothing when that does not fit in memory.
  std::optional<Duration> predicted_step_kept{};
  std::vector<std::string> explanation{};  // lines for people: what was chosen and why
};

}  // namespace weft::plan
