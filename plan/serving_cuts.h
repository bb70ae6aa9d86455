// Internal to plan/serving: where to cut a model's parts for devices in a given order round a ring, and what
// a cut costs.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "plan/serving.h"

namespace weft::plan {

// By stage: where its first span ends, in units. The entry's second begins where the last stage's ends; a
// ring of one stage ends behind the last unit.
struct RingCuts {
  std::vector<uint32_t> ends{};
  double cost = 0;  // seconds, of the objective
};
struct RingLoad {
  int64_t weights = 0, work = 0;  // bytes
  int64_t cache = 0, kept = 0;    // bytes of a position: of caches, and of what goes to the stage behind
};

// Cuts fall between units: parts, or neighbours of them where there are very many. What it is given outlives
// it.
class RingProblem {
 public:
  explicit RingProblem(const ServingRequest& request);

  uint32_t units() const { return static_cast<uint32_t>(begin_.size() - 1); }
  uint32_t stages_max() const { return std::max(1u, units() - 1); }  // the entry has two units, others one
  // Steps of a search that cut() takes.
  double effort(size_t stages) const;
  // The best for devices in that order, where each has memory for caches of so many positions; nothing: one
  // has not. Devices are indices into the cluster; each stands there once.
  std::optional<RingCuts> cut(std::span<const uint32_t> order, uint64_t positions) const;

  RingLoad load(size_t stage, const std::vector<uint32_t>& ends) const;
  RingLoad whole() const { return load(0, {units()}); }
  std::vector<PartSpan> parts(size_t stage, const std::vector<uint32_t>& ends) const;
  // Computing a pass of so many rows on a device: of as many sequences, or of one.
  double seconds(uint32_t device, size_t stage, const std::vector<uint32_t>& ends, double rows,
                 bool of_one = false) const;
  // Until the stage behind `stage` has them.
  double hop(std::span<const uint32_t> order, size_t stage, const std::vector<uint32_t>& ends,
             double rows) const;
  double of_all(uint32_t device) const { return span_seconds(device, 0, units(), rows_); }
  // The most positions that a device has memory for beside a load's weights and work.
  uint64_t room(uint32_t device, const RingLoad& load) const;
  // Rows that a stage has sent on lie on its host, unless nobody has room for them.
  void keep_no_rows() { keeps_rows_ = false; }
  bool keeps_rows() const { return keeps_rows_; }

 private:
  struct Rates {
    std::vector<double> first, more, same;  // of all units before one
  };
  void make_units();
  void measure_spans();
  bool fits(uint32_t device, const RingLoad& load, uint64_t positions) const;
  int64_t kept_behind(uint32_t unit) const;
  const Rates& rates(uint32_t device) const;
  double span_seconds(uint32_t device, uint32_t begin, uint32_t end, double rows, bool of_one = false) const;
  double hop(uint32_t from, uint32_t to, uint32_t at, double rows) const;
  double joined(double a, double b) const { return adds_ ? a + b : std::max(a, b); }
  // Best costs with the spans of one more stage, by where they end.
  std::vector<double> extend(const std::vector<double>& before, uint32_t from, uint32_t device,
                             uint64_t positions, std::vector<uint32_t>& begins) const;
  void close(std::span<const uint32_t> order, uint32_t head, uint64_t positions,
             std::optional<RingCuts>& best) const;

  const ServingRequest& request_;
  const bool adds_;    // costs of stages and hops; else the slowest counts
  const double rows_;  // of a pass
  bool keeps_rows_ = true;
  std::vector<uint32_t> begin_;                // by unit, and one more: its first part
  std::vector<std::vector<RingLoad>> span_;    // by begin and end
  std::vector<std::vector<int64_t>> ends_of_;  // weights of the units before one and those from another on
  mutable std::vector<std::optional<Rates>> rates_;  // by device, as they are asked for
};

}  // namespace weft::plan
