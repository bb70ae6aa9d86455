#include "plan/partition.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace weft::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr uint32_t kNoBegin = std::numeric_limits<uint32_t>::max();
constexpr double kForwardShare = 1.0 / 3;  // of a microbatch's work

// One table of the dynamic programme: by stage and end, the best value and where that stage begins.
struct Table {
  size_t width;
  std::vector<double> value;
  std::vector<uint32_t> begin;

  Table(size_t stages, size_t positions)
      : width(positions + 1), value(stages * width, kNever), begin(stages * width, kNoBegin) {}
};

std::optional<Partition> read_back(const PartitionProblem& problem, const Table& table) {
  const auto stages = static_cast<uint32_t>(problem.stages.size());
  uint32_t end = problem.tail;
  if (table.value[(stages - 1) * table.width + end] == kNever) return std::nullopt;
  Partition partition;
  partition.ends.resize(stages);
  for (uint32_t stage = stages; stage-- > 0;) {
    const uint32_t begin = table.begin[stage * table.width + end];
    WEFT_CHECK(begin != kNoBegin);
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
  const uint32_t n = problem.tail;
  if (stages == 0 || stages > n) return std::nullopt;
  Table table(stages, n);
  for (uint32_t stage = 0; stage < stages; ++stage) {
    const uint32_t last_end = stage + 1 == stages ? n : n - (stages - 1 - stage);
    const uint32_t first_end = stage + 1 == stages ? n : problem.first_end(stage, stage);
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

double PartitionProblem::on_lines(uint32_t stage, uint32_t begin, uint32_t end) const {
  const Stage& at = stages[stage];
  if (at.uplink == kUnlimited && at.downlink == kUnlimited) return 0;
  const uint32_t n = model->positions, until = passing ? n : end;
  int64_t up = crossing().received(end, n), down = crossing().returned(end, n);
  const auto add = [&](uint32_t border, uint32_t to) {
    up += crossing().returned(border, to);
    down += crossing().received(border, to);
  };
  if (begin > 0) add(begin, until);
  const auto& data = model->held_before.data;
  int64_t fed = data[end] - data[begin];
  if (stage == 0 && ring) {
    add(tail, n);
    fed += data[n] - data[tail];
  }
  return std::max(static_cast<double>(up) / ratio / at.uplink,
                  (static_cast<double>(down) / ratio + static_cast<double>(fed)) / at.downlink);
}

StageCost PartitionProblem::cost(uint32_t stage, uint32_t begin, uint32_t end) const {
  const double computing = work(stage, begin, end), lines = on_lines(stage, begin, end);
  const Stage& at = stages[stage];
  const auto [received, returned] = transfer(stage, begin, passing ? model->positions : end);
  const double latency =
      (received > 0 ? seconds(at.receive.latency) : 0) + (returned > 0 ? seconds(at.give_back.latency) : 0);
  return {std::max({computing, received, returned, lines}), computing + received + returned + latency};
}

PartitionProblem::Transfer PartitionProblem::transfer(uint32_t stage, uint32_t begin, uint32_t end) const {
  if (stage == 0) return over_link(stage, 0, 0);
  return over_link(stage, crossing().received(begin, end), crossing().returned(begin, end));
}

PartitionProblem::Transfer PartitionProblem::over_link(uint32_t stage, int64_t received,
                                                       int64_t returned) const {
  // Of two stages, what the tail receives takes the links between head and middle: it is counted there.
  const bool closes = ring && stage == (stages.size() == 2 ? 1 : 0);
  if (closes) {
    const int64_t to_tail = crossing().received(tail, model->positions),
                  from_tail = crossing().returned(tail, model->positions);
    received += stage == 0 ? to_tail : from_tail;
    returned += stage == 0 ? from_tail : to_tail;
  }
  return {static_cast<double>(received) / ratio / stages[stage].receive.bytes_per_second,
          static_cast<double>(returned) / ratio / stages[stage].give_back.bytes_per_second};
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

double PartitionProblem::work(uint32_t stage, uint32_t begin, uint32_t end) const {
  const double once = compute(stage, begin, end);
  if (!repeats || stages[stage].in_flight == 1 || fits_with(begin, end, stage, stages[stage].in_flight))
    return once;
  return once * (1 + kForwardShare);
}

bool PartitionProblem::fits(uint32_t begin, uint32_t end, uint32_t stage) const {
  if (const PinnedRange* pinned = stages[stage].pinned;
      pinned && (begin > pinned->first || end <= pinned->last))
    return false;
  return fits_with(begin, end, stage, repeats ? 1 : stages[stage].in_flight);
}

// What the stage is given lasts for each microbatch in flight, what it makes for so many of them.
bool PartitionProblem::fits_with(uint32_t begin, uint32_t end, uint32_t stage, double saved_in_flight) const {
  const auto& held = model->held_before;
  const auto over = [&](const std::vector<int64_t>& before) {
    return before[end] - before[begin] + (stage == 0 ? before.back() - before[tail] : 0);
  };
  if (over(held.parameters) + over(held.other) > stages[stage].weights_max) return false;
  const int64_t parameters = over(held.parameters);
  const int64_t state = parameters + beside.bytes(parameters) + over(held.other);
  // Where the host has memory of its own, the copy lies there, and what replicas keep to agree.
  const int64_t agreed = dag::BesideParameter{.whole = beside.whole}.bytes(parameters);
  const int64_t copy = stages[stage].holds_copy ? state - over(held.fixed) : -agreed;
  const auto widest = [&](const RangeMax& of) {
    return std::max(of.of(begin, end), stage == 0 ? of.of(tail, model->positions) : int64_t{0});
  };
  const int64_t scratch = widest(model->workspace) + widest(model->gradient);
  const int64_t persistent = state + copy + over(held.parameters) * gradient_sums + scratch;
  int64_t given = 0;
  if (stage > 0) given = crossing().received(begin, end) + crossing().returned(begin, end);
  if (stage == 0 && ring) given = crossing().over(tail) + ring->waiting;
  const double microbatches = static_cast<double>(over(held.saved)) * saved_in_flight +
                              static_cast<double>(given) * stages[stage].in_flight;
  const double bytes = static_cast<double>(persistent) + microbatches * memory_scale;
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

namespace {

class Bisection {
 public:
  explicit Bisection(const PartitionProblem& problem)
      : problem_(problem), count_(static_cast<uint32_t>(problem.stages.size())), n_(problem.tail) {}

  std::vector<Partition> run(std::span<const double> factors) {
    if (count_ == 0 || count_ > n_) return {};
    double high = most();
    if (farthest_ends(high).empty()) return {};
    for (double low = 0; high - low > kExact * high;) {
      const double middle = low + (high - low) / 2;
      (farthest_ends(middle).empty() ? low : high) = middle;
    }
    std::vector<Partition> found;
    for (const double factor : factors) {
      const std::vector<uint32_t> ends = cheapest_ends(high * factor);
      const bool known =
          std::any_of(found.begin(), found.end(), [&](const Partition& other) { return other.ends == ends; });
      if (!ends.empty() && !known) found.push_back({ends, problem_.cost_of(ends)});
    }
    return found;
  }

 private:
  static constexpr double kExact = 1e-4;

  // No stage can take longer.
  double most() const {
    int64_t received = 0, returned = 0, on_lines = 0;
    for (uint32_t border = 1; border < n_; ++border) {
      const uint32_t end = problem_.model->positions;
      received = std::max(received, problem_.crossing().received(border, end));
      returned = std::max(returned, problem_.crossing().returned(border, end));
      on_lines = std::max({on_lines, problem_.model->crossing.received(border, n_),
                           problem_.model->crossing.returned(border, n_)});
    }
    double most = link_seconds(0, 0);
    for (uint32_t stage = 0; stage < count_; ++stage) {
      most = std::max({most, problem_.work(stage, 0, n_), most_on_lines(stage, on_lines)});
      if (stage == 0 || n_ < 2) continue;
      const auto over_link = problem_.over_link(stage, received, returned);
      most = std::max({most, over_link.received, over_link.returned});
    }
    return most;
  }
  // Of a stage that begins there: the longer of receiving and giving back.
  double link_seconds(uint32_t stage, uint32_t border) const {
    const auto [received, returned] = problem_.transfer(stage, border, problem_.model->positions);
    return std::max(received, returned);
  }
  bool takes(uint32_t stage, uint32_t begin, uint32_t end, double most) const {
    return problem_.work(stage, begin, end) <= most && problem_.fits(begin, end, stage);
  }
  // The last end that the stage can take from there on, borders aside; `begin` when not even one position.
  uint32_t last_end(uint32_t stage, uint32_t begin, double most) const {
    uint32_t low = problem_.first_end(stage, begin), high = n_ - (count_ - 1 - stage);
    if (low > high || !takes(stage, begin, low, most)) return begin;
    while (low < high) {
      const uint32_t middle = low + (high - low + 1) / 2;
      if (takes(stage, begin, middle, most))
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
  // Empty: they do not get through.
  std::vector<uint32_t> farthest_ends(double most) const {
    if (link_seconds(0, 0) > most) return {};
    std::vector<uint32_t> ends;
    for (uint32_t stage = 0, begin = 0; stage < count_; ++stage) {
      uint32_t end = last_end(stage, begin, most);
      while (stage + 1 < count_ && end > begin &&
             (link_seconds(stage + 1, end) > most || problem_.on_lines(stage, begin, end) > most))
        --end;
      if (end == begin || end < problem_.first_end(stage, begin)) return {};
      ends.push_back(end);
      begin = end;
    }
    if (ends.back() != n_) return {};
    if (problem_.on_lines(count_ - 1, count_ > 1 ? ends[count_ - 2] : 0, n_) > most) return {};
    return ends;
  }
  double most_on_lines(uint32_t stage, int64_t most) const {
    const auto& at = problem_.stages[stage];
    if (at.uplink == kUnlimited && at.downlink == kUnlimited) return 0;
    const int64_t data = problem_.model->held_before.data.back();
    return static_cast<double>(2 * most + data) / std::min(at.uplink, at.downlink);
  }
  // By stage: the first place where it may begin if those behind it are to get through.
  std::vector<uint32_t> first_begins(double most) const {
    std::vector<uint32_t> begins(count_);
    for (uint32_t stage = count_, end = n_; stage-- > 0;) {
      uint32_t begin = end;
      while (begin > stage && takes(stage, begin - 1, end, most)) --begin;
      while (stage > 0 && begin < end && link_seconds(stage, begin) > most) ++begin;
      begins[stage] = begin;
      end = std::max(begin, stage);
    }
    return begins;
  }
  std::vector<uint32_t> cheapest_ends(double most) const {
    std::vector<uint32_t> farthest = farthest_ends(most);
    if (farthest.empty()) return {};
    const std::vector<uint32_t> first = first_begins(most);
    std::vector<uint32_t> ends;
    for (uint32_t stage = 0, begin = 0; stage + 1 < count_; ++stage) {
      const uint32_t last = std::min(farthest[stage], last_end(stage, begin, most));
      uint32_t best = last;
      double least = link_seconds(stage + 1, last);
      for (uint32_t end = std::max(problem_.first_end(stage, begin), first[stage + 1]); end < last; ++end)
        if (const double seconds = link_seconds(stage + 1, end); seconds < least) best = end, least = seconds;
      if (best <= begin) return farthest;
      ends.push_back(best);
      begin = best;
    }
    ends.push_back(n_);
    for (uint32_t stage = 0; stage < count_; ++stage) {
      const uint32_t begin = stage == 0 ? 0 : ends[stage - 1];
      if (!problem_.fits(begin, ends[stage], stage) || problem_.on_lines(stage, begin, ends[stage]) > most)
        return farthest;
    }
    return ends;
  }

  const PartitionProblem& problem_;
  uint32_t count_, n_;
};

}  // namespace

std::vector<Partition> partitions_by_bisection(const PartitionProblem& problem,
                                               std::span<const double> factors) {
  return Bisection(problem).run(factors);
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
