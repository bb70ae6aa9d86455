// What the stages of a cut do in a step: segments that run, values that travel, memory that is held. The
// segments are those of dag::split.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"
#include "dag/graph.h"
#include "plan/cost.h"

namespace weft::plan {

struct Segment {
  Duration compute{};  // of one microbatch
  bool backward = false;
};
struct StageWork {
  std::vector<Segment> segments;
  Duration update{};  // once a step
  Bytes persistent;   // initializers, gradients, optimizer slots, constants, workspace
  Bytes microbatch;   // each microbatch in flight
  uint32_t ops = 0;   // forward ops that compute
};
// What one segment sends another stage for each microbatch. The segment that receives is the first that
// reads.
struct Message {
  uint32_t from_stage = 0, from_segment = 0;
  uint32_t to_stage = 0, to_segment = 0;
  Bytes bytes;
};
struct Pipeline {
  std::vector<StageWork> stages;
  std::vector<Message> messages;  // ordered by sender, receiver
};

struct PipelineOptions {
  uint32_t microbatches = 1;
  uint32_t optimizer_slots = 0;
};
// `stage_of_op` as dag::split takes it, `rates` by stage, `groups` of group_costs(graph). The memory is an
// estimate on the safe side: what lives together by lifetimes, a fifth for gaps between blocks, and what is
// being sent.
Pipeline make_pipeline(const dag::Graph& graph, std::span<const GroupCost> groups,
                       std::span<const uint32_t> stage_of_op, std::span<const Rates> rates,
                       const PipelineOptions& options);

}  // namespace weft::plan
