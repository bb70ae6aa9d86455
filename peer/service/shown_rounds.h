// The rounds on which a seat has agreed last, for who looks at means a second time (replicas/mean_check.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "dag/tensor.h"
#include "replicas/mean_evidence.h"

namespace weft::peer {

class ShownRounds {
 public:
  struct Round {
    uint64_t step = 0;  // with which it ended
    // The replica's differences, by tensor that the stage has; empty: it made no step. Nothing: the round is
    // not about that one.
    std::vector<std::optional<dag::Tensor>> sent{};
    std::optional<uint32_t> fragment{};  // that it is about; nothing: about all
    replicas::MeanEvidence evidence{};
  };
  // So many are kept.
  void add(Round round, uint64_t most) {
    rounds_.push_back(std::move(round));
    if (rounds_.size() > most) rounds_.pop_front();
  }
  void clear() { rounds_.clear(); }
  const Round* find(uint64_t step) const {
    const auto at = std::find_if(rounds_.begin(), rounds_.end(),
                                 [step](const Round& round) { return round.step == step; });
    return at == rounds_.end() ? nullptr : &*at;
  }
  // After the last one, as StepReport::owed; nothing: nothing is.
  std::optional<Digest> owed() const {
    if (rounds_.empty() || !rounds_.back().evidence.owed()) return std::nullopt;
    return rounds_.back().evidence.owed()->root();
  }

 private:
  std::deque<Round> rounds_;
};

}  // namespace weft::peer
