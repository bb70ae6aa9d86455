// A round of local steps, until a stage has agreed on it with those of the other replicas.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "dag/tensor.h"
#include "peer/machine/task.h"
#include "proto/agreed_weights.h"
#include "replicas/local_steps.h"
#include "replicas/mean_evidence.h"

namespace weft::peer {

struct AgreedRound {
  uint64_t step = 0;                   // with which it ends
  std::optional<uint32_t> fragment{};  // that it is about; nothing: it settles, and is about all of them
  // By fragment that it is about, and replica: of how many of its steps its differences are; 0: it has none.
  std::map<uint32_t, std::vector<uint64_t>> steps{};
  // By tensor that the stage has: this replica's differences, as they were sent, if it learnt any; of these,
  // as others read them, the sum of squares; the means, as others read them, empty: not there.
  std::vector<std::optional<dag::Tensor>> sent{};
  std::vector<double> squares{};
  std::vector<std::vector<float>> means{};
  replicas::MeanEvidence evidence{};

  // Of which the steps are counted, and no mean is there yet. `task`: its Differ.
  void begin(const Task& task, const replicas::LocalSteps& local, size_t tensors);
  bool settles() const { return !fragment; }
  bool is_about(const proto::AgreedWeight& weight) const {
    return !fragment || weight.tensor->fragment == *fragment;
  }
  // REQUIRES: it is about that.
  uint64_t steps_of(const proto::AgreedWeight& weight, uint32_t replica) const {
    return steps.at(weight.tensor->fragment)[replica];
  }
  bool has_sent() const {
    return std::any_of(sent.begin(), sent.end(), [](const auto& one) { return one.has_value(); });
  }
  // What it is about, as a number: norms are compared with those of rounds that were about the same.
  uint32_t about(const replicas::ReplicaTerms& terms) const {
    return terms.fragments > 1 ? fragment.value_or(terms.fragments) : 0;
  }
};

}  // namespace weft::peer
