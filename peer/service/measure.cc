#include "peer/service/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include "peer/service/trial.h"
#include "peer/service/unit_problems.h"
#include "plan/cost.h"

namespace weft::peer {
namespace {

constexpr int kRounds = 2;
constexpr auto kTimeForEach = std::chrono::milliseconds(50);
constexpr double kRunSeconds = 0.005;
constexpr int64_t kMemoryShare = 64;
constexpr int64_t kOfferedShare = 16;  // with the copy on the host that it is made from
constexpr double kLeastRate = 1, kMostRate = 1e18;

// A problem as it ran last: the least that it took, and what a plan knows of it.
struct Measured {
  int64_t times = 1;
  double seconds = 0;
  std::vector<plan::GroupCost> groups;
  std::vector<Bytes> updated;
};

Result<Trial> fitting_trial(const UnitProblem& problem, Measured& measured, bool first, Backend& backend,
                            Bytes share) {
  for (;;) {
    WEFT_TRY(Trial trial, Trial::create(problem.graph(measured.times), backend));
    if (!first || !problem.grows) return trial;
    WEFT_TRY(const double once, trial.run());
    if (once >= kRunSeconds || !is_within(problem.graph(2 * measured.times), backend, share)) return trial;
    measured.times *= 2;
  }
}

Status measure_once(const UnitProblem& problem, Measured& measured, bool first, Backend& backend,
                    Bytes share) {
  WEFT_TRY(Trial trial, fitting_trial(problem, measured, first, backend, share));
  WEFT_TRY(const double seconds, problem.updates ? trial.measure_update(kTimeForEach) : trial.measure(kTimeForEach));
  measured.seconds = first ? seconds : std::min(measured.seconds, seconds);
  if (!first) return {};
  if (!problem.updates) measured.groups = plan::group_costs(trial.graph());
  for (const dag::Initializer& one : trial.graph().initializers())
    measured.updated.push_back(trial.graph().spec(one.value).bytes());
  return {};
}

double predicted(const Measured& measured, const plan::Rates& rates) {
  double sum = 0;
  for (const plan::GroupCost& group : measured.groups) sum += plan::seconds_of(group, rates);
  for (const Bytes parameter : measured.updated) sum += plan::update_seconds(parameter, 2, rates);
  return sum;
}

// The number with which the prediction is what was measured; at least half of the time is taken to be its.
double solve(const UnitProblem& problem, const Measured& measured, plan::Rates rates) {
  double& number = rates.of(problem.unit).*problem.field;
  number = kMostRate;
  const double rest = predicted(measured, rates);
  const double seconds = std::max(measured.seconds, std::min(rest, measured.seconds / 2) + measured.seconds / 2);
  double low = kLeastRate, high = kMostRate;
  for (int i = 0; i < 80; ++i) {
    number = std::sqrt(low * high);
    (predicted(measured, rates) > seconds ? low : high) = number;
  }
  return std::sqrt(low * high);
}

// In the order of the problems. What no problem tells: convolutions move bytes as elementwise kernels do, and
// arithmetic has one rate.
plan::Rates solve_all(const std::vector<UnitProblem>& problems, const std::vector<Measured>& measured,
                      plan::Rates rates) {
  using plan::Unit;
  rates.units.fill({kMostRate, kMostRate, kMostRate, kMostRate});
  const plan::UnitRates& memory = rates.of(Unit::Elementwise);
  for (size_t i = 0; i < problems.size(); ++i) {
    plan::UnitRates& unit = rates.of(problems[i].unit);
    unit.*problems[i].field = solve(problems[i], measured[i], rates);
    if (problems[i].field == &plan::UnitRates::bytes_per_second && problems[i].unit == Unit::Elementwise)
      for (const Unit one : {Unit::Convolution, Unit::ConvolutionWeights, Unit::Pointwise, Unit::Depthwise})
        rates.of(one).small_bytes_per_second = memory.small_bytes_per_second,
        rates.of(one).bytes_per_second = memory.bytes_per_second;
  }
  for (plan::UnitRates& unit : rates.units) {
    if (unit.flops_per_second == kMostRate) unit.flops_per_second = memory.flops_per_second;
    unit.small_flops_per_second = std::min(unit.small_flops_per_second, unit.flops_per_second);
    if (unit.small_bytes_per_second == kMostRate) unit.small_bytes_per_second = unit.bytes_per_second;
  }
  rates.matmul_flops_per_second = rates.of(Unit::MatMul).flops_per_second;
  rates.convolution_flops_per_second = rates.of(Unit::Convolution).flops_per_second;
  rates.memory_bytes_per_second = memory.bytes_per_second;
  return rates;
}

}  // namespace

Result<plan::Rates> measure_rates(Backend& backend, Bytes offered) {
  const auto memory = backend.memory();
  Bytes share{memory ? memory->free.value / kMemoryShare : 0};
  if (offered.value > 0) share = std::min(share, Bytes{offered.value / kOfferedShare});
  plan::Rates rates;
  int64_t kernels = 0;
  {
    WEFT_TRY(Trial trial, Trial::create(small_kernels(kernels), backend));
    WEFT_TRY(const double seconds, trial.measure(kTimeForEach));
    rates.kernel_seconds = seconds / static_cast<double>(kernels);
  }
  const std::vector<UnitProblem> problems = unit_problems();
  std::vector<Measured> measured(problems.size());
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < problems.size(); ++i)
      WEFT_TRY_STATUS(measure_once(problems[i], measured[i], round == 0, backend, share));
  return solve_all(problems, measured, rates);
}

}  // namespace weft::peer
