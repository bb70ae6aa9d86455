// Small changes to a proposal, as long as they make it better by its own estimate: a border one or a few
// positions further, two stages that change devices, a stage that goes to a device that has nothing to do.
#pragma once

#include "plan/proposal.h"

namespace weft::plan {

// The same number of stages, and memory respected as the estimate has it. Deterministic: a bounded number of
// changes is looked at.
Proposal refine(const Scope& scope, Proposal proposal);

}  // namespace weft::plan
