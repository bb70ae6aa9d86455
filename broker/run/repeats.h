// What stages of a run may report a second time: what they were granted before they came back, for they
// cannot know what of it was heard. Such reports are dropped and counted. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::broker {

class Repeats {
 public:
  explicit Repeats(size_t stages) : until_(stages, 0) {}

  // The stage came back; what comes after step `granted` it has never been given.
  void on_resumed(uint32_t stage, uint64_t granted) { until_[stage] = std::max<uint64_t>(1, granted); }
  // Whether what it reports of that step may be a repeat.
  bool may_be(uint32_t stage, uint64_t step) const { return step <= until_[stage]; }
  // Whether what it reports, which says nothing new, is a repeat; it is counted then.
  bool drop(uint32_t stage, uint64_t step) {
    if (!may_be(stage, step)) return false;
    ++dropped_;
    return true;
  }
  void count() { ++dropped_; }

  uint64_t dropped() const { return dropped_; }

 private:
  std::vector<uint64_t> until_;  // by stage
  uint64_t dropped_ = 0;
};

}  // namespace weft::broker
