// What a stage with local steps has of each tensor that replicas agree about, or of each part of a large one
// (replicas/parts.h): its own of all that is kept from one agreement to the next. In host memory.
#pragma once

#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "dag/state.h"
#include "dag/tensor.h"
#include "peer/state.h"
#include "proto/agreed_weights.h"

namespace weft::peer {

struct AgreedState {
  proto::AgreedWeight weight;
  std::vector<float> agreed{}, momentum{}, residue{}, return_residue{};
  // What the replica's round began with, where the one before it overlaps it; empty: what was agreed.
  std::vector<float> start{};
};

// By key: OuterMomentum, Residue and ReturnResidue; what is not there is zero.
using KeptBetweenAgreements = std::map<dag::StateKey, dag::Tensor>;
// In the order of the assignment, which outlives them: so the parts of a tensor lie side by side. The weights
// that `state` holds are taken as agreed. Of a part `kept` may also have what is owed of all of its tensor.
// Unsupported: a weight that is not float32; InvalidArgument: a tensor of another shape.
Result<std::vector<AgreedState>> read_agreed_state(const proto::AssignStage& assignment, State& state,
                                                   const KeptBetweenAgreements& kept);

// The end of the parts of one tensor. REQUIRES: `begin` is its first.
size_t end_of_tensor(std::span<const AgreedState> all, size_t begin);
// The tensor, of its parts.
dag::Tensor whole_tensor(std::span<const AgreedState> all, size_t begin, size_t end,
                         std::vector<float> AgreedState::*values);
// A part of it. REQUIRES: float32, and the weight's whole.
std::span<const float> part_of(const dag::Tensor& whole, const proto::AgreedWeight& weight);

// What read_agreed_state takes as `kept`, of a stage of that replica.
std::vector<std::pair<dag::StateKey, dag::Tensor>> kept_tensors(std::span<const AgreedState> all,
                                                                uint32_t replica);

}  // namespace weft::peer
