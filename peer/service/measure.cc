#include "peer/service/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace weft::peer {
namespace {

using plan::Unit;

constexpr int kRounds = 3;
constexpr double kSecondsMax = 1.5;  // no further round is begun
constexpr auto kTimeForEach = std::chrono::milliseconds(25);
constexpr double kRunSeconds = 0.0015;
constexpr int64_t kMemoryShare = 64;
constexpr int64_t kOfferedShare = 16;  // with the copy on the host that it is made from
constexpr double kLeastRate = 1, kMostRate = 1e18;

}  // namespace

DeviceMeter::DeviceMeter(Backend& backend, Bytes offered, TrialClock clock)
    : backend_(backend), clock_(clock), measured_(problems_.size()) {
  const auto memory = backend.memory();
  share_ = {memory ? memory->free.value / kMemoryShare : 0};
  if (offered.value > 0) share_ = std::min(share_, Bytes{offered.value / kOfferedShare});
}

Status DeviceMeter::round() {
  WEFT_TRY_STATUS(measure_launch());
  for (size_t i = 0; i < problems_.size(); ++i) WEFT_TRY_STATUS(measure(problems_[i], measured_[i]));
  return {};
}

Status DeviceMeter::measure_launch() {
  int64_t kernels = 0;
  WEFT_TRY(Trial trial, Trial::create(small_kernels(kernels), backend_, clock_));
  WEFT_TRY(const double seconds, trial.measure(kTimeForEach));
  kernel_seconds_ = std::min(kernel_seconds_, seconds / static_cast<double>(kernels));
  return {};
}

Result<Trial> DeviceMeter::fitting_trial(const UnitProblem& problem, Measured& measured) {
  const bool first = measured.times == 0;
  if (first) measured.times = 1;
  for (;;) {
    WEFT_TRY(Trial trial, Trial::create(problem.graph(measured.times), backend_, clock_));
    if (!first || !problem.grows) return trial;
    WEFT_TRY(const double once, trial.run());
    if (once >= kRunSeconds || !is_within(problem.graph(2 * measured.times), backend_, share_)) return trial;
    measured.times *= 2;
  }
}

Status DeviceMeter::measure(const UnitProblem& problem, Measured& measured) {
  const bool first = measured.times == 0;
  WEFT_TRY(Trial trial, fitting_trial(problem, measured));
  WEFT_TRY(const double seconds,
           problem.updates ? trial.measure_update(kTimeForEach) : trial.measure(kTimeForEach));
  measured.seconds = first ? seconds : std::min(measured.seconds, seconds);
  if (!first) return {};
  if (!problem.updates) measured.groups = plan::group_costs(trial.graph());
  for (const dag::Initializer& one : trial.graph().initializers())
    measured.updated.push_back(trial.graph().spec(one.value).bytes());
  return {};
}

double DeviceMeter::predicted(const Measured& measured, const plan::Rates& rates) {
  double sum = 0;
  for (const plan::GroupCost& group : measured.groups) sum += plan::seconds_of(group, rates);
  for (const Bytes parameter : measured.updated) sum += plan::update_seconds(parameter, {.slots = 2}, rates);
  return sum;
}

// The number with which the prediction is what was measured; a third of the time at least is taken to be its.
double DeviceMeter::solve(const UnitProblem& problem, const Measured& measured, plan::Rates rates) {
  double& number = rates.of(problem.unit).*problem.field;
  number = kMostRate;
  const double seconds = std::max(measured.seconds, predicted(measured, rates) + measured.seconds / 3);
  double low = kLeastRate, high = kMostRate;
  for (int i = 0; i < 80; ++i) {
    number = std::sqrt(low * high);
    (predicted(measured, rates) > seconds ? low : high) = number;
  }
  return std::sqrt(low * high);
}

// In the order of the problems. What no problem tells: convolutions move bytes as elementwise kernels do, but
// for depthwise ones, whose bytes and work go together; arithmetic has one rate.
plan::Rates DeviceMeter::rates() const {
  plan::Rates rates;
  rates.kernel_seconds = kernel_seconds_;
  rates.units.fill({kMostRate, kMostRate, kMostRate, kMostRate});
  const plan::UnitRates& memory = rates.of(Unit::Elementwise);
  for (size_t i = 0; i < problems_.size(); ++i) {
    const auto& [unit, field, graph, grows, updates] = problems_[i];
    rates.of(unit).*field = solve(problems_[i], measured_[i], rates);
    if (unit != Unit::Elementwise) continue;
    for (const Unit one : {Unit::Convolution, Unit::ConvolutionWeights, Unit::Pointwise})
      if (field != &plan::UnitRates::flops_per_second) rates.of(one).*field = memory.*field;
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

Result<plan::Rates> measure_rates(Backend& backend, Bytes offered) {
  DeviceMeter meter(backend, offered);
  const double begin = wall_clock();
  for (int i = 0; i < kRounds && (i == 0 || wall_clock() - begin < kSecondsMax); ++i)
    WEFT_TRY_STATUS(meter.round());
  return meter.rates();
}

}  // namespace weft::peer
