// What a strategy is asked, and what it answers (plan/strategy.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/model.h"
#include "plan/request.h"

namespace weft::plan {

// What a strategy is asked for: `stages` of the request's devices, of these alone.
struct Scope {
  const PlanRequest* request = nullptr;
  const Model* model = nullptr;
  const Model* coarse = nullptr;  // the same graph with few positions, to compare orders of devices
  std::vector<uint32_t> devices;  // indices into the cluster
  uint32_t stages = 1;
  bool tight = false;  // what was proposed before turned out too large for the devices' memory
  std::span<const PinnedRange> pinned{};  // no strategy need look at these: plan/constraints.h sees to them
};
struct Proposal {
  std::vector<uint32_t> devices;  // by stage
  // By stage: the position behind its last; ascending. Where the last is less than model->positions, the
  // pipeline is a ring: the positions from there on are the first stage's, too.
  std::vector<uint32_t> ends;
  double score = 0;  // seconds a step by the strategy's own estimate
  // What a row cannot say: positions that another stage has than the one where they lie; ascending.
  struct MovedPosition {
    uint32_t position = 0, stage = 0;
    bool operator==(const MovedPosition&) const = default;
  };
  std::vector<MovedPosition> moved{};

  bool is_ring(const Model& of) const { return ends.back() < of.positions; }
  std::vector<uint32_t> stages(const Model& of) const;  // by position
  bool has_all_stages(const Model& of) const;           // every stage has a position
};

}  // namespace weft::plan
