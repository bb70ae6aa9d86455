// What must be true of a job whose replicas make local steps. Its events say which plans it had, as whoever
// submitted it makes the run's record of them (replicas::rounds_of); what one machine makes of that record
// (sim/rounds_alone.h) is what every assignment, every agreement, every checkpoint and the result must hold.
// Each function says what is wrong about what it was told; nothing: it is in order.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "broker/records.h"
#include "replicas/local_steps.h"
#include "sim/rounds_alone.h"

namespace weft::sim {

class ReplicaLaws {
 public:
  using Complaint = std::optional<std::string>;
  // `wrong_means`: somebody lies about these. Steps may be made, and said, from them until they are looked
  // at.
  explicit ReplicaLaws(const JobSpec& spec, bool wrong_means = false)
      : spec_(spec), alone_(spec), may_have_wrong_means_(wrong_means) {}

  void on_plan(const proto::JobEvent& event) { plans_.push_back({*event.local_steps, event.inherited}); }
  Complaint on_run(const broker::PlannedRun& plan, proto::PlanVersion version);
  Complaint on_command(const proto::Command& command);
  Complaint on_step(const proto::JobEvent& event);
  Complaint on_evaluation(const proto::JobEvent& event);
  Complaint on_checkpoint(const broker::CheckpointCommitted& checkpoint);
  Complaint on_assigned(const proto::AssignStage& assignment);
  Complaint on_loaded(const proto::AssignStage& assignment);
  Complaint on_result(const proto::JobResult& result);
  // A seat has agreed with the others: on these weights, by number.
  void on_agreed(const proto::AssignStage& assignment, uint64_t inner,
                 const std::map<uint32_t, uint64_t>& weights);

  // Of the run: the last step of which events tell once that inner one is committed. One that only replicas
  // would have made that were left out has no event.
  uint64_t told(uint64_t inner) const;
  // The run under way stops where its replicas were told that they end, or that others are gone.
  bool ends() const { return is_ending_; }

  struct Counts {
    uint64_t agreements = 0, left_out = 0, given_again = 0, grown = 0, shrunk = 0, inherited = 0, kept = 0;
    uint64_t followed = 0,
             caught_up = 0;  // runs that replicas followed; and plans that then dealt them steps
    Counts& operator+=(const Counts& more);
  };
  const Counts& counts() const { return counts_; }

 private:
  using Rounds = RoundsAlone::Rounds;
  using Plans = std::vector<replicas::Begun>;
  // Of the run under way: after that agreement, which may be one without those that were lost.
  Rounds rounds_after(uint64_t inner) const;
  Rounds rounds_up_to(uint64_t steps, const replicas::Inherited& next) const;
  Complaint check_agreements(uint64_t committed);
  Complaint check_assignment(const Plans& plans, const proto::AssignStage& assignment);
  Complaint check_tensors(const RoundsAlone::State& state, std::span<const proto::TensorReference> tensors,
                          const std::string& where) const;
  size_t tensors_wanted(const broker::CheckpointCommitted& checkpoint) const;

  const JobSpec& spec_;
  RoundsAlone alone_;
  bool may_have_wrong_means_;
  Plans plans_;
  std::map<proto::PlanVersion, Plans> assigned_;  // as they were when its stages were assigned
  proto::PlanVersion version_ = 0;
  std::optional<replicas::LocalSteps> running_;
  std::optional<proto::Command> left_out_;  // the last such of this run
  bool is_ending_ = false;
  // By inner step, number and replica.
  std::map<uint64_t, std::map<std::pair<uint32_t, uint32_t>, uint64_t>> agreed_;
  Counts counts_;
};

}  // namespace weft::sim
