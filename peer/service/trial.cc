#include "peer/service/trial.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "dag/lower.h"
#include "dag/op_table.h"

namespace weft::peer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kRunsMin = 3;
constexpr size_t kRunsMax = 400;
// No value is larger.
constexpr int64_t kElementsMax = int64_t{1} << 26;

// Ordinary numbers: zeros and whatever lay in memory are not representative. Integers are zero.
dag::Tensor ordinary(const dag::TensorSpec& spec) {
  dag::Tensor tensor(spec);
  if (spec.dtype != dag::DType::F32) return tensor;
  uint32_t state = 1;
  for (float& value : tensor.mutable_as<float>()) {
    state = state * 1664525 + 1013904223;
    value = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
  }
  return tensor;
}

}  // namespace

double wall_clock() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

template <typename Work>
Result<double> Trial::time_of(Work work) {
  WEFT_TRY_STATUS(backend_->synchronize());
  const double begin = clock_();
  WEFT_TRY_STATUS(work());
  WEFT_TRY_STATUS(backend_->synchronize());
  return clock_() - begin;
}

template <typename Once>
Result<double> Trial::typical(Duration time, Once once) {
  std::vector<double> seconds;
  const auto end = Clock::now() + time;
  while (seconds.size() < kRunsMin || (seconds.size() < kRunsMax && Clock::now() < end)) {
    WEFT_TRY(const double one, once());
    seconds.push_back(one);
  }
  std::sort(seconds.begin(), seconds.end());
  return std::max(seconds[seconds.size() / 8], 1e-9);
}

Result<Trial> Trial::create(const dag::Graph& graph, Backend& backend, TrialClock clock) {
  Trial trial(backend, clock);
  const bool updates = graph.find_output(dag::OutputRole::Gradient) != nullptr;
  ExecutorOptions options;
  if (updates) options.optimizer = dag::OptimizerSpec{.type = dag::OptimizerType::AdamW};
  WEFT_TRY(trial.executor_, Executor::create(std::make_shared<const dag::Graph>(
                                                 dag::lower(graph, dag::op_table(), backend.traits())),
                                             std::make_shared<State>(backend), std::move(options)));
  WEFT_TRY(trial.microbatch_, trial.executor_->make_microbatch());
  WEFT_TRY_STATUS(trial.fill());
  WEFT_TRY_STATUS(trial.run());  // warm
  return trial;
}

Status Trial::fill() {
  for (const dag::ValueId input : graph().inputs())
    WEFT_TRY_STATUS(executor_->set_value(*microbatch_, input, ordinary(graph().spec(input))));
  for (const dag::Initializer& one : graph().initializers())
    WEFT_TRY_STATUS(
        executor_->state().write(dag::of_initializer(one.name), ordinary(graph().spec(one.value))));
  return {};
}

Result<double> Trial::run() {
  return time_of([&] { return executor_->run(*microbatch_); });
}

Result<double> Trial::measure(Duration time) {
  return typical(time, [&] { return run(); });
}

Result<double> Trial::measure_update(Duration time) {
  const dag::UpdateStep step{.step = 2, .learning_rate = 1e-6, .gradient_scale = 1};
  return typical(time, [&] { return time_of([&] { return executor_->update(step); }); });
}

bool is_within(const dag::Graph& graph, const Backend& backend, Bytes memory) {
  int64_t bytes = 0;
  for (const dag::Value& value : graph.values()) {
    if (value.spec.element_count() > kElementsMax) return false;
    bytes += backend.storage_bytes(value.spec, value.layout).value;
  }
  return bytes <= memory.value;
}

}  // namespace weft::peer
