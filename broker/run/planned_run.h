// A run as the planner made it: its stages, ready to be sent, and what the broker must know to conduct it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/encoded.h"
#include "proto/messages.h"
#include "replicas/chosen_terms.h"

namespace weft::broker {

// One stage of a planned run, ready to be sent.
struct PlannedStage : proto::RunStage {
  proto::Encoded<proto::AssignStage> assignment{};
};

// What planning a job gives. Its terms of training are those of its stages' assignments.
struct PlannedRun : proto::RunTerms {
  std::vector<PlannedStage> stages{};  // by seat, ascending

  bool serves() const { return !served.name.empty(); }
  // Whether each parameter's owner alone has the optimizer's slots of it (proto::ExactTerms).
  bool shares_slots() const { return !stages.empty() && proto::shares_slots(*stages.front().assignment); }
  // Where the seat is in `stages`.
  std::optional<uint32_t> find(const plan::Seat& seat) const;
  // For people: "stage 2", "stage 2, replica 3"; and as fields of a log line, from 0.
  std::string name_of(uint32_t stage) const { return plan::to_string(stages[stage].assignment->seat); }
  std::string fields_of(uint32_t stage) const;
};

// What its replica comes to terms with the others about; empty for a stage of one pipeline.
const std::vector<proto::AgreedTensor>& agreed_tensors(const proto::AssignStage& stage);

// What its planner chose, of replicas with local steps.
replicas::ChosenTerms chosen_by(const PlannedRun& plan);

// What a replica with local steps keeps beside what it trains, from one agreement to the next: what its outer
// rule moves on with, what it owes, and where it takes the mean what is owed of that (replicas/agreement.h).
// Empty for a stage of any other run. `training`: the stage's graph.
struct KeptTensor {
  dag::StateKey key{};
  dag::TensorSpec spec{};
};
std::vector<KeptTensor> kept_between_agreements(const proto::AssignStage& stage, const dag::Graph& training);

// Dense bytes over those on the wire, of what codecs carry in training; 0: nothing has one.
double codec_ratio(const PlannedRun& plan);
// Bytes that a peer loads to take the stage on: every weight, and the optimizer's slots of what it updates.
int64_t loaded_bytes(const PlannedRun& plan, uint32_t stage);
int64_t largest_loaded_bytes(const PlannedRun& plan);
// Bytes of a copy of the stage's state (proto::copied_state): without what never changes; 0 where others have
// the same (proto::keeps_state).
int64_t copied_bytes(const PlannedRun& plan, uint32_t stage);
int64_t largest_copied_bytes(const PlannedRun& plan);
// What the slowest stage takes to copy its state at the rate that its peer is allowed, or else at
// `usual_rate`, bytes a second (0: no limit).
double slowest_copy_seconds(const PlannedRun& plan, uint64_t usual_rate);

}  // namespace weft::broker
