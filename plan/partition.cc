#include "plan/partition.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace weft::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

// One table of the dynamic programme: by stage and end, the best value and where that stage begins.
struct Table {
  size_t width;
  std::vector<double> value;
  std::vector<uint32_t> begin;

  Table(size_t stages, size_t positions)
      : width(positions + 1), value(stages * width, kNever), begin(stages * width, kNone) {}
};

std::optional<Partition> read_back(const PartitionProblem& problem, const Table& table) {
  const auto stages = static_cast<uint32_t>(problem.stages.size());
  uint32_t end = problem.model->positions;
  if (table.value[(stages - 1) * table.width + end] == kNever) return std::nullopt;
  Partition partition;
  partition.ends.resize(stages);
  for (uint32_t stage = stages; stage-- > 0;) {
    const uint32_t begin = table.begin[stage * table.width + end];
    WEFT_CHECK(begin != kNone);
    partition.ends[stage] = end;
    const StageCost cost = problem.cost(stage, begin, end);
    partition.cost.bottleneck = std::max(partition.cost.bottleneck, cost.bottleneck);
    partition.cost.sum += cost.sum;
    end = begin;
  }
  return partition;
}

// `worth(before, cost)`: the value of a partition that ends with a stage of that cost, nothing when not
// allowed. A stage is widened towards the front until its compute alone is no better than what is known.
template <typename Worth, typename Hopeless>
std::optional<Partition> solve(const PartitionProblem& problem, Worth worth, Hopeless hopeless) {
  const auto stages = static_cast<uint32_t>(problem.stages.size());
  const uint32_t n = problem.model->positions;
  if (stages == 0 || stages > n) return std::nullopt;
  Table table(stages, n);
  for (uint32_t stage = 0; stage < stages; ++stage) {
    const uint32_t last_end = stage + 1 == stages ? n : n - (stages - 1 - stage);
    const uint32_t first_end = stage + 1 == stages ? n : stage + 1;
    for (uint32_t end = first_end; end <= last_end; ++end) {
      double& best = table.value[stage * table.width + end];
      const uint32_t lowest = stage == 0 ? 0 : stage;
      for (uint32_t begin = stage == 0 ? 0 : end - 1;; --begin) {
        if (hopeless(problem.compute(stage, begin, end), best)) break;
        const double before = stage == 0 ? 0 : table.value[(stage - 1) * table.width + begin];
        if (before < kNever && problem.fits(begin, end, stage)) {
          const double value = worth(before, problem.cost(stage, begin, end));
          if (value < best) {
            best = value;
            table.begin[stage * table.width + end] = begin;
          }
        }
        if (begin == lowest) break;
      }
    }
  }
  return read_back(problem, table);
}

}  // namespace

StageCost PartitionProblem::cost(uint32_t stage, uint32_t begin, uint32_t end) const {
  const double computing = compute(stage, begin, end);
  if (stage == 0) return {computing, computing};
  const Stage& at = stages[stage];
  const uint32_t until = passing ? model->positions : end;
  const double received =
      static_cast<double>(model->crossing.received(begin, until)) / at.receive.bytes_per_second;
  const double returned =
      static_cast<double>(model->crossing.returned(begin, until)) / at.give_back.bytes_per_second;
  const double latency =
      (received > 0 ? seconds(at.receive.latency) : 0) + (returned > 0 ? seconds(at.give_back.latency) : 0);
  return {std::max({computing, received, returned}), computing + received + returned + latency};
}

StageCost PartitionProblem::cost_of(const std::vector<uint32_t>& ends) const {
  StageCost whole;
  for (uint32_t stage = 0; stage < ends.size(); ++stage) {
    const StageCost one = cost(stage, stage == 0 ? 0 : ends[stage - 1], ends[stage]);
    whole.bottleneck = std::max(whole.bottleneck, one.bottleneck);
    whole.sum += one.sum;
  }
  return whole;
}

bool PartitionProblem::fits(uint32_t begin, uint32_t end, uint32_t stage) const {
  const auto& held = model->held_before;
  const auto over = [&](const std::vector<int64_t>& before) { return before[end] - before[begin]; };
  const int64_t state = over(held.parameters) * (1 + optimizer_slots) + over(held.other);
  const int64_t persistent =
      state * (stages[stage].holds_copy ? 2 : 1) + over(held.parameters) * gradient_sums;
  int64_t microbatch = over(held.saved);
  if (stage > 0) microbatch += model->crossing.received(begin, end) + model->crossing.returned(begin, end);
  const double bytes = static_cast<double>(persistent) +
                       static_cast<double>(microbatch) * memory_scale * stages[stage].in_flight;
  return bytes <= static_cast<double>(stages[stage].memory);
}

std::optional<Partition> least_bottleneck(const PartitionProblem& problem) {
  return solve(
      problem, [](double before, const StageCost& cost) { return std::max(before, cost.bottleneck); },
      [](double compute, double best) { return compute >= best; });
}

std::optional<Partition> least_sum(const PartitionProblem& problem, double bottleneck_max) {
  return solve(
      problem,
      [&](double before, const StageCost& cost) {
        return cost.bottleneck <= bottleneck_max ? before + cost.sum : kNever;
      },
      [&](double compute, double) { return compute > bottleneck_max; });
}

std::shared_ptr<const std::vector<double>> seconds_before(const Model& model, const DeviceView& device,
                                                          bool accumulates) {
  auto before = std::make_shared<std::vector<double>>(model.positions + 1, 0.0);
  const std::vector<double> seconds =
      seconds_of_positions(model, device.device_class, device.rates, accumulates);
  for (uint32_t p = 0; p < model.positions; ++p) (*before)[p + 1] = (*before)[p] + seconds[p];
  return before;
}

}  // namespace weft::plan
