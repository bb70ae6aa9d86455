// Stages for another graph of a job that has been planned.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dag/graph.h"
#include "dag/lower.h"

namespace weft::plan {

// An op that is not in an earlier stage, as a pin has it.
struct StageFloor {
  dag::OpId op;
  uint32_t stage = 0;
};

// Stages for another graph of the same job (evaluation, prediction) so that every initializer lies where
// `stage_of_op` has it in `graph`: what reads an initializer goes where it is read there, what comes after
// goes along, in the order in which a microbatch comes by the stages, also where that is by one of them
// several times. The groups of `other` as each of `classes` runs it stay whole; none: of `other` as it is.
// `floors`: of ops of `other`. The result covers every op; a stage may be without ops.
std::vector<uint32_t> follow_stages(const dag::Graph& other,
                                    std::span<const std::shared_ptr<const dag::Lowered>> classes,
                                    const dag::Graph& graph, const std::vector<uint32_t>& stage_of_op,
                                    std::span<const StageFloor> floors = {});

}  // namespace weft::plan
