// A run as the planner made it: its stages, ready to be sent, and what the broker must know to conduct it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "proto/messages.h"

namespace weft::broker {

// One stage of a planned run, ready to be sent.
struct PlannedStage {
  PeerId peer{};
  std::shared_ptr<const proto::AssignStage> assignment{};
  std::vector<uint32_t> parameters{};  // of the whole graph, in this stage's order: where its squares belong
  double microbatch_seconds = 0;       // predicted: computing one microbatch, forward and backward
  bool pinned = false;                 // nobody else may have it
  std::string owner{};                 // not empty: only this owner's machines may have it
};

// What planning a job gives.
struct PlannedRun {
  std::vector<PlannedStage> stages{};  // by seat, ascending
  uint64_t steps = 0;                  // 0: prediction
  uint32_t batch_size = 0;
  uint32_t microbatches = 0;  // a step
  uint32_t parameter_count = 0;
  dag::OptimizerSpec optimizer{};
  dag::ScheduleSpec schedule{};
  double clip_norm = 0;
  dag::OnDivergence on_divergence = dag::OnDivergence::Stop;
  std::vector<uint64_t> empty_steps{};  // ascending: in which nothing counts in the loss
  uint64_t evaluate_every = 0;
  std::optional<Duration> checkpoint_every{};
  std::optional<uint64_t> checkpoint_steps{};
  // Evaluation, or prediction: microbatches in all and the samples in each but the last; 0: none.
  uint32_t forward_microbatches = 0;
  uint64_t forward_samples = 0;
  uint32_t microbatch_size = 0;
  bool masked = false;  // the evaluation graph leaves padding out and counts what counted
  bool accuracy = false;
  dag::LossTerms loss_terms{};
  uint32_t prediction_stages = 0;    // how many stages report outputs
  bool equal_bits = true;            // all peers of one fingerprint
  bool equal_bits_required = false;  // then a stage goes to nobody else
  std::string fingerprint{};
  std::vector<std::string> explanation{};
  std::vector<proto::Secret> relay_tickets{};  // of its links
  proto::Secret data_key{};
  Duration predicted_step{};
  // Of links whose codecs the planner chose: how much gentler they had to become (plan::Compression).
  std::optional<uint32_t> gentler{};

  // Stages update only once they are told what all of a step comes to (proto::GradientNorm).
  bool decides_together() const { return clip_norm > 0 || skips_steps(); }
  bool skips_steps() const { return on_divergence == dag::OnDivergence::Skip; }
  bool is_empty(uint64_t step) const {
    return std::binary_search(empty_steps.begin(), empty_steps.end(), step);
  }
  // Where the seat is in `stages`.
  std::optional<uint32_t> find(const plan::Seat& seat) const {
    for (uint32_t s = 0; s < stages.size(); ++s)
      if (stages[s].assignment->seat == seat) return s;
    return std::nullopt;
  }
};

}  // namespace weft::broker
