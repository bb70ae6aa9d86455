// How long a step of a running plan would take with other peers on its stages: what its pieces cost there,
// and what they send over the links between.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "broker/events.h"
#include "broker/planned_run.h"
#include "plan/cluster.h"
#include "plan/cost.h"

namespace weft::broker {

class Pace {
 public:
  // `cluster`: the candidates as its devices, in their order.
  Pace(const PlannedRun& plan, const std::vector<Candidate>& candidates, plan::ClusterView cluster);

  // placed: by stage, an index into the candidates. An estimate to compare with another: all stages and ways
  // one after the other, and the busiest of them for each further microbatch.
  double step_seconds(std::span<const uint32_t> placed) const;

 private:
  struct Stage {
    std::vector<plan::GroupCost> groups;  // empty: what it costs is not known
    double seconds = 0;                   // as it was planned, then
  };
  struct Sent {
    uint32_t from_stage = 0, to_stage = 0;
    double bytes = 0;  // a microbatch
  };
  double compute_seconds(uint32_t stage, uint32_t candidate) const;

  const std::vector<Candidate>& candidates_;
  const plan::ClusterView cluster_;
  const uint32_t microbatches_;
  std::vector<Stage> stages_;
  std::vector<Sent> sent_;  // each ordered pair of stages once
};

}  // namespace weft::broker
