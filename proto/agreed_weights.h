// The tensors that a stage with local steps agrees about, as its programs know them.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "proto/stage.h"

namespace weft::proto {

struct AgreedWeight {
  const AgreedTensor* tensor = nullptr;  // of the assignment
  dag::StateKey key{};
  dag::TensorSpec spec{};
  bool is_statistic = false;  // averaged as it is: neither codec nor outer rule touch it
  bool is_ours = false;       // this seat takes the mean, as it was planned

  // How its differences and their mean travel.
  compress::Codec codec(const AssignStage& assign) const {
    return is_statistic ? compress::Codec{} : assign.local->steps.terms.codec;
  }
  size_t elements() const { return static_cast<size_t>(spec.element_count()); }
};
// By number. Empty without local terms. The assignment outlives them.
std::vector<AgreedWeight> agreed_weights(const AssignStage& assign);
// Of that number; nullptr: there is none.
const AgreedWeight* find_agreed(const std::vector<AgreedWeight>& weights, uint32_t number);

// What a stage owes of the means that it takes, in pieces, side by side: the leaves of the tree whose root it
// says (replicas/mean_check.h). With which one the tensor begins, or how many there are, if it is none of
// them.
size_t first_owed_piece(const AssignStage& assign, const std::vector<AgreedWeight>& weights,
                        std::optional<uint32_t> number);

}  // namespace weft::proto
