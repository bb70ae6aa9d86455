// How long a step of a running plan would take with other peers on its stages: what its pieces cost there,
// and what they send over the links between. Replicas make their steps side by side: the slowest one's, and
// its part of an agreement.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "broker/events.h"
#include "broker/run/planned_run.h"
#include "plan/agreement.h"
#include "plan/cluster.h"
#include "plan/cost.h"
#include "plan/pipeline.h"

namespace weft::broker {

class Pace {
 public:
  // `cluster`: the candidates as its devices, in their order.
  Pace(const PlannedRun& plan, const std::vector<Candidate>& candidates, plan::ClusterView cluster);

  // placed: by stage, an index into the candidates. An estimate to compare with another: all stages and ways
  // one after the other, and the busiest of them for each further microbatch.
  double step_seconds(std::span<const uint32_t> placed) const;
  // Of the run: with replicas one of all of theirs, of whom each makes its share. Played through as the
  // planner does, task by task.
  Duration predicted_step(std::span<const uint32_t> placed) const;

 private:
  struct Stage {
    uint32_t replica = 0;
    std::vector<plan::GroupCost> groups;  // empty: what it costs is not known
    std::vector<uint32_t> segment_of_group;
    uint32_t segments = 1;
    std::vector<bool> is_backward;  // by segment
    std::vector<Bytes> parameters;  // of which gradients are made here
    std::vector<bool> updated;      // by parameter: here, too
    uint32_t last_segment = 0;      // that makes one
    uint32_t in_flight = 1;
    double seconds = 0;  // as it was planned
  };
  struct Sent {
    uint32_t from_stage = 0, to_stage = 0;
    double bytes = 0;  // a microbatch
  };
  void add_stage(const PlannedStage& planned);
  void add_messages(const PlannedRun& plan);
  void add_agreed(const PlannedRun& plan, const compress::Codec& codec);
  double step_seconds(uint32_t replica, std::span<const uint32_t> placed) const;
  Duration predicted_step(uint32_t replica, std::span<const uint32_t> placed) const;
  double part_of(uint32_t replica) const;  // of the steps that the fastest replica makes
  uint32_t microbatches_of(uint32_t replica) const {
    return microbatches_of_.empty() ? microbatches_ : microbatches_of_[replica];
  }
  double agreement_seconds(std::span<const uint32_t> placed) const;  // a step's part
  double compute_seconds(uint32_t stage, uint32_t candidate) const;
  plan::StageWork work_of(uint32_t stage, const plan::Rates& rates) const;

  const std::vector<Candidate>& candidates_;
  const plan::ClusterView cluster_;
  const uint32_t microbatches_;              // of a step
  std::vector<uint32_t> microbatches_of_{};  // by replica, where each has some of them; empty: all of them
  const dag::BesideParameter beside_;
  const bool clips_norm_;
  uint32_t replicas_ = 1;
  uint64_t every_ = 1;                    // steps between two agreements
  uint64_t waited_for_every_ = 1;         // of rounds: the others overlap
  std::vector<uint64_t> shares_;          // of these, by replica; empty: all
  std::vector<plan::AgreedLoad> agreed_;  // its devices are stages of the plan
  std::vector<Stage> stages_;
  std::vector<plan::Message> messages_;
  std::vector<Sent> sent_;  // each ordered pair of stages once
};

// How the run that goes on compares with another one of the same job, made of the same candidates.
Reconsidered::Other compare_runs(const Reconsider& request, const PlannedRun& other);

}  // namespace weft::broker
