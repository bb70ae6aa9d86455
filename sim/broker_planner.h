// How the simulated broker plans: on a thread of its own, one plan after the other, as long as the draw says.
#pragma once

#include <functional>
#include <vector>

#include "broker/events.h"
#include "sim/disk.h"
#include "sim/plans.h"
#include "sim/world.h"

namespace weft::sim {

class BrokerPlanner {
 public:
  struct Options {
    // Of candidates those with whom a step takes least, and a run that goes on moves where they are others;
    // else the first ones, and it moves by chance.
    bool by_pace = false;
    uint64_t copy_rate = 0;
  };
  // All of them outlive it.
  BrokerPlanner(World& world, SimBlobs& blobs, const std::vector<JobSpec>& specs, Draw& draw, Options options)
      : world_(world), blobs_(blobs), specs_(specs), draw_(draw), options_(options) {}

  // Called with a PlanningDone or Reconsidered, unless the process ends before.
  using Done = std::function<void(broker::Event)>;
  void plan(broker::StartPlanning request, Done done);
  void reconsider(broker::Reconsider request, Done done);
  void stop_moves_by_chance() { moves_by_chance_ = false; }
  // With its process: nothing comes of what is under way.
  void end() {
    ++life_;
    free_ = {};
  }

 private:
  Result<broker::Reconsidered::Other> compare(uint32_t index, const broker::Reconsider& request,
                                              uint64_t turn, uint64_t secret) const;
  Status make_initial_values(const broker::PlannedRun& run, const JobSpec& spec);

  World& world_;
  SimBlobs& blobs_;
  const std::vector<JobSpec>& specs_;
  Draw& draw_;
  const Options options_;
  bool moves_by_chance_ = true;
  Instant free_{};  // when it can begin with another one
  uint64_t life_ = 0;
};

}  // namespace weft::sim
