// Where the optimizer's slots of a parameter lie with its owner alone: what an owner sends once it has made
// the update, and what the others do with it.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "peer/service/share.h"
#include "peer/state.h"

namespace weft::peer {

// What the stage's training program updates, where that is not all of it (ExecutorOptions::updated).
std::optional<std::set<std::string, std::less<>>> updated_here(const proto::AssignStage& assign);

// The weight as it is now, to each other replica that has it; it leaves the device once. Errors: of the
// device.
Status send_weight(const proto::AssignStage& assign, const proto::AgreedTensor& tensor,
                   const dag::TensorSpec& spec, uint64_t step, const State& state,
                   std::vector<SendingShare>& sent);
// In place of the stage's own. Errors: of the device.
Status take_weight(const proto::AgreedTensor& tensor, const AgreedShare& weight, State& state);

}  // namespace weft::peer
