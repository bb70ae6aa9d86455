// The last look at a plan: small changes, each evaluated exactly, for what an estimate overlooks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/evaluator.h"

namespace weft::plan {

struct PolishOptions {
  bool number_may_change = true;  // of stages
  std::vector<uint32_t> idle{};   // devices that may come in: those of the plan's fleet without a stage
};

// Changes `chosen` for as long as that pays and `work_left` (Evaluator::work) lasts: of large plans next to
// nothing. As many microbatches in flight as pay in the end.
void polish(Evaluator& evaluator, CandidatePlan& chosen, PolishOptions options, size_t& work_left);
// Goes a few steps astray from `chosen` and polishes from there, again and again, while that helps.
void explore(Evaluator& evaluator, CandidatePlan& chosen, PolishOptions options, size_t& work_left);

}  // namespace weft::plan
