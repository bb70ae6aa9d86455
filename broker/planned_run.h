// A run as the planner made it: its stages, ready to be sent, and what the broker must know to conduct it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "proto/messages.h"

namespace weft::broker {

// One stage of a planned run, ready to be sent.
struct PlannedStage : proto::RunStage {
  std::shared_ptr<const proto::AssignStage> assignment{};
};

// What planning a job gives. Its terms of training are those of its stages' assignments.
struct PlannedRun : proto::RunTerms {
  std::vector<PlannedStage> stages{};  // by seat, ascending

  // Where the seat is in `stages`.
  std::optional<uint32_t> find(const plan::Seat& seat) const {
    for (uint32_t s = 0; s < stages.size(); ++s)
      if (stages[s].assignment->seat == seat) return s;
    return std::nullopt;
  }
};

}  // namespace weft::broker
