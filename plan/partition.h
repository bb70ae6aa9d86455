// Where to cut a row of positions for devices in a given order: dynamic programming over (cut position,
// stage).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "plan/cluster.h"
#include "plan/model.h"
#include "plan/pin.h"

namespace weft::plan {

// A stage's seconds for one microbatch. A link's time is that of the values that cross the stage's lower
// border, over the link from the stage before, and back. Values that only pass the stage by, on their way to
// a later one, really take another link; they are counted here when `passing` says so, because that link may
// be as slow: else a stage without work between two regions would seem to make their link free.
struct StageCost {
  double bottleneck = 0;  // the longest of compute, receiving, returning, and what passes either line
  double sum = 0;         // one after the other, with latencies
};

// Of a ring, the first stage has all positions from `tail` on besides: its compute and its memory are with
// theirs, and before its second part stands the last stage.
struct PartitionProblem {
  const Model* model = nullptr;
  const Ring* ring = nullptr;  // the model's
  uint32_t tail = 0;           // where the last stage ends: the model's positions where there is no ring
  struct Stage {
    std::shared_ptr<const std::vector<double>>
        seconds_before;  // by position: of all positions before it; n + 1
    int64_t memory = 0;
    bool holds_copy = false;  // of its state, in the same memory
    uint32_t in_flight = 1;
    LinkView receive, give_back;  // from the stage before, and to it; for the first only in a ring
    double uplink = kUnlimited, downlink = kUnlimited;  // shared with what the stage behind sends and takes
    const PinnedRange* pinned = nullptr;                // the stage has all of these
    int64_t weights_max = std::numeric_limits<int64_t>::max();  // bytes of initializers
  };
  std::vector<Stage> stages;
  dag::BesideParameter beside{};
  uint32_t gradient_sums = 1;
  bool passing = true;
  double memory_scale = 1;  // of what a microbatch in flight is taken to need
  double ratio = 1;         // of what crosses, dense bytes / wire bytes
  bool repeats = false;     // a stage that does not fit may make forward values again, which takes time

  // Whether any stage's uplink or downlink is limited.
  bool has_lines() const {
    return std::any_of(stages.begin(), stages.end(),
                       [](const Stage& at) { return at.uplink != kUnlimited || at.downlink != kUnlimited; });
  }
  StageCost cost(uint32_t stage, uint32_t begin, uint32_t end) const;
  StageCost cost_of(const std::vector<uint32_t>& ends) const;  // the largest bottleneck, the sum of sums
  // The longer of what passes the stage's uplink and its downlink: both neighbours' messages.
  double on_lines(uint32_t stage, uint32_t begin, uint32_t end) const;
  double compute(uint32_t stage, uint32_t begin, uint32_t end) const {
    const auto& before = *stages[stage].seconds_before;
    return before[end] - before[begin] + (stage == 0 ? before.back() - before[tail] : 0);
  }
  // Seconds on the links to the stage before, when a stage has [begin, end).
  struct Transfer {
    double received = 0, returned = 0;
  };
  Transfer transfer(uint32_t stage, uint32_t begin, uint32_t end) const;
  Transfer over_link(uint32_t stage, int64_t received, int64_t returned) const;  // of so many bytes
  // The first end that a stage may have that begins there.
  uint32_t first_end(uint32_t stage, uint32_t begin) const {
    return std::max(begin + 1, stage == 0 && ring ? ring->head_end : 0);
  }
  // With what is made again: of the longer time if it has to be.
  double work(uint32_t stage, uint32_t begin, uint32_t end) const;
  bool fits(uint32_t begin, uint32_t end, uint32_t stage) const;
  const Crossing& crossing() const { return ring ? ring->crossing : model->crossing; }

 private:
  bool fits_with(uint32_t begin, uint32_t end, uint32_t stage, double saved_in_flight) const;
};

struct Partition {
  std::vector<uint32_t> ends;  // by stage
  StageCost cost;              // the largest bottleneck, the sum of sums
};
// Of all partitions into non-empty stages that fit: the one with the least bottleneck; the one with the least
// sum among those whose bottleneck is at most `bottleneck_max`. Nothing: none fits.
std::optional<Partition> least_bottleneck(const PartitionProblem& problem);
std::optional<Partition> least_sum(const PartitionProblem& problem, double bottleneck_max);

// Without a table: the least stage time T at which every stage, taking as many positions as compute, memory
// and an open border allow, gets through the row (a border is open to T when what crosses it takes at most
// T), and for T times each of `factors` the partition whose borders the fewest bytes cross. Linear in
// positions for each T that is tried; the bottleneck is within a thousandth of the least where memory is no
// matter and `passing` is set, which this takes for granted. Best first is not promised; each partition once.
std::vector<Partition> partitions_by_bisection(const PartitionProblem& problem,
                                               std::span<const double> factors);

// Sums over positions that both DP and its callers need: seconds_before for a device.
std::shared_ptr<const std::vector<double>> seconds_before(const Model& model, const DeviceView& device,
                                                          bool accumulates);

}  // namespace weft::plan
