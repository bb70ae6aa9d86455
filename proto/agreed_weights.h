// The tensors that a stage with local steps agrees about, as its programs know them.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "proto/stage.h"
#include "replicas/parts.h"

namespace weft::proto {

struct AgreedWeight {
  const AgreedTensor* tensor = nullptr;  // of the assignment
  dag::StateKey key{};
  dag::TensorSpec spec{};  // of the part, which is flat
  dag::TensorSpec whole{};
  uint32_t part = 0;          // counted from 1; 0: it is whole
  bool is_statistic = false;  // averaged as it is: neither codec nor outer rule touch it
  bool is_ours = false;       // this seat takes the mean, as it was planned

  // How its differences and their mean travel.
  compress::Codec codec(const AssignStage& assign) const {
    return is_statistic ? compress::Codec{} : assign.local->steps.terms.codec;
  }
  size_t elements() const { return static_cast<size_t>(spec.element_count()); }
  size_t first() const { return replicas::first_of(tensor->number); }
};
// By list, each as the one before it or the next part of the same: 0 for one that is whole.
std::vector<uint32_t> parts_of(const std::vector<AgreedTensor>& tensors);
// The order of a stage's list (replicas/parts.h).
bool is_before(const AgreedTensor& a, const AgreedTensor& b);
dag::TensorSpec spec_of(const AgreedTensor& tensor, const dag::TensorSpec& whole);

// In the order of the assignment. Empty without local terms. The assignment outlives them.
std::vector<AgreedWeight> agreed_weights(const AssignStage& assign);
// Of that number; nullptr: there is none.
const AgreedWeight* find_agreed(const std::vector<AgreedWeight>& weights, uint32_t number);

// What a stage owes of the means that it takes, in pieces, side by side: the leaves of the tree whose root it
// says (replicas/mean_check.h). With which one the tensor begins, or how many there are, if it is none of
// them.
size_t first_owed_piece(const AssignStage& assign, const std::vector<AgreedWeight>& weights,
                        std::optional<uint32_t> number);

}  // namespace weft::proto
