#include "peer/service/measure.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "dag/lower.h"
#include "dag/op_table.h"
#include "peer/executor.h"

namespace weft::peer {
namespace {

using dag::Attr;
using dag::DType;
using dag::GraphBuilder;
using dag::Ints;
using dag::OpKind;
using dag::Shape;
using dag::ValueId;
using Clock = std::chrono::steady_clock;

constexpr auto kTimeForEach = std::chrono::milliseconds(200);
constexpr size_t kRunsMin = 3;
constexpr size_t kRunsMax = 400;
// A problem is doubled until a run of it takes this long: what a device does not have enough of to fill it
// says how fast it launches kernels. Within kElementsMax for a value and a share of the memory that is free.
constexpr double kRunSeconds = 0.02;
constexpr int64_t kElementsMax = int64_t{1} << 26;
constexpr int64_t kMemoryShare = 64;
constexpr int64_t kOfferedShare = 16;  // with the copy on the host that it is made from
// The smallest problems.
constexpr int64_t kMatmulSize = 512;
constexpr int64_t kConvolutionBatch = 4;
constexpr int64_t kAddElements = int64_t{2} << 20;  // three values of 8 MiB: beyond most caches

// A graph with one op that matters, its operands as inputs.
dag::Graph one_op(OpKind kind, const std::vector<Shape>& operands, dag::Attributes attributes,
                  const Backend& backend) {
  GraphBuilder builder(dag::op_table());
  std::vector<ValueId> inputs;
  for (const Shape& shape : operands)
    inputs.push_back(builder.input("x" + std::to_string(inputs.size()), {DType::F32, shape}));
  builder.output("y", builder.add(kind, inputs, std::move(attributes)), dag::OutputRole::Prediction);
  return dag::lower(builder.finish(), dag::op_table(), backend.traits());
}

// Ordinary numbers: zeros and whatever lay in memory are not representative.
dag::Tensor ordinary(const dag::TensorSpec& spec) {
  dag::Tensor tensor(spec);
  uint32_t state = 1;
  for (float& value : tensor.mutable_as<float>()) {
    state = state * 1664525 + 1013904223;
    value = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
  }
  return tensor;
}

// A graph with its inputs on the device, to be run again and again.
class Trial {
 public:
  static Result<Trial> create(dag::Graph graph, Backend& backend) {
    Trial trial(backend);
    WEFT_TRY(trial.executor_, Executor::create(std::make_shared<const dag::Graph>(std::move(graph)),
                                               std::make_shared<State>(backend), {}));
    WEFT_TRY(trial.microbatch_, trial.executor_->make_microbatch());
    for (const ValueId input : trial.executor_->graph().inputs())
      WEFT_TRY_STATUS(trial.executor_->set_value(*trial.microbatch_, input,
                                                 ordinary(trial.executor_->graph().spec(input))));
    WEFT_TRY_STATUS(trial.run());  // warm
    return trial;
  }

  Result<double> run() {
    WEFT_TRY_STATUS(backend_->synchronize());
    const auto begin = Clock::now();
    WEFT_TRY_STATUS(executor_->run(*microbatch_));
    WEFT_TRY_STATUS(backend_->synchronize());
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  // Seconds of a run: the median of the fastest quarter, because rates are those of a device that does
  // nothing else, and this machine may be busy right now.
  Result<double> measure() {
    std::vector<double> seconds;
    const auto end = Clock::now() + kTimeForEach;
    while (seconds.size() < kRunsMin || (seconds.size() < kRunsMax && Clock::now() < end)) {
      WEFT_TRY(const double once, run());
      seconds.push_back(once);
    }
    std::sort(seconds.begin(), seconds.end());
    return std::max(seconds[seconds.size() / 8], 1e-9);
  }

 private:
  explicit Trial(Backend& backend) : backend_(&backend) {}

  Backend* backend_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Microbatch> microbatch_;
};

// So many times the work of the smallest problem that is measured.
using Problem = std::function<dag::Graph(int64_t times)>;

bool is_within(const dag::Graph& graph, const Backend& backend, Bytes memory) {
  int64_t bytes = 0;
  for (const dag::Value& value : graph.values()) {
    if (value.spec.element_count() > kElementsMax) return false;
    bytes += backend.storage_bytes(value.spec, value.layout).value;
  }
  return bytes <= memory.value;
}

// The work of a problem that fills a run, by `work`, for each second that it takes beside launching.
Result<double> rate_of(const Problem& problem, double (*work)(const dag::Graph&), double kernel_seconds,
                       Backend& backend, Bytes share) {
  dag::Graph graph = problem(1);
  for (int64_t times = 2;; times *= 2) {
    const double amount = work(graph);
    WEFT_TRY(Trial trial, Trial::create(std::move(graph), backend));
    WEFT_TRY(const double once, trial.run());
    graph = problem(times);
    if (once < kRunSeconds && is_within(graph, backend, share)) continue;
    WEFT_TRY(const double seconds, trial.measure());
    return amount / std::max(seconds - kernel_seconds, seconds / 2);
  }
}

// The sides of a matrix product grow by turns.
dag::Graph matmul(int64_t times, const Backend& backend) {
  int64_t sides[] = {kMatmulSize, kMatmulSize, kMatmulSize};
  for (int turn = 0; times > 1; times /= 2) sides[turn++ % 3] *= 2;
  return one_op(OpKind::MatMul, {{sides[0], sides[1]}, {sides[1], sides[2]}}, {}, backend);
}

// Several in a row, so that conversions between layouts weigh about as much as in a network.
dag::Graph convolutions(int64_t times, const Backend& backend) {
  GraphBuilder builder(dag::op_table());
  ValueId x = builder.input("x", {DType::F32, {kConvolutionBatch * times, 64, 28, 28}});
  for (int layer = 0; layer < 3; ++layer) {
    const ValueId w = builder.input("w" + std::to_string(layer), {DType::F32, {64, 64, 3, 3}});
    x = builder.add(OpKind::Conv, {x, w},
                    {{Attr::Strides, Ints{1, 1}},
                     {Attr::Dilations, Ints{1, 1}},
                     {Attr::Pads, Ints{1, 1, 1, 1}},
                     {Attr::Groups, int64_t{1}}});
  }
  builder.output("y", x, dag::OutputRole::Prediction);
  return dag::lower(builder.finish(), dag::op_table(), backend.traits());
}

double flops_of(const dag::Graph& graph) {
  double flops = 0;
  for (const dag::Op& op : graph.ops())
    if (op.kind == OpKind::MatMul || op.kind == OpKind::Conv)
      flops += static_cast<double>(op_flops(graph, op).value);
  return flops;
}

// Of all values: each is read or written once.
double bytes_of(const dag::Graph& graph) {
  double bytes = 0;
  for (const dag::Value& value : graph.values()) bytes += static_cast<double>(value.spec.bytes().value);
  return bytes;
}

}  // namespace

Result<plan::Rates> measure_rates(Backend& backend, Bytes offered) {
  plan::Rates rates;
  const auto memory = backend.memory();
  Bytes share{memory ? memory->free.value / kMemoryShare : 0};
  if (offered.value > 0) share = std::min(share, Bytes{offered.value / kOfferedShare});
  {
    WEFT_TRY(Trial trial, Trial::create(one_op(OpKind::Neg, {{16}}, {}, backend), backend));
    WEFT_TRY(rates.kernel_seconds, trial.measure());
  }
  const auto rate = [&](const Problem& problem, double (*work)(const dag::Graph&)) {
    return rate_of(problem, work, rates.kernel_seconds, backend, share);
  };
  WEFT_TRY(rates.matmul_flops_per_second,
           rate([&](int64_t times) { return matmul(times, backend); }, flops_of));
  WEFT_TRY(rates.convolution_flops_per_second,
           rate([&](int64_t times) { return convolutions(times, backend); }, flops_of));
  const auto add = [&](int64_t times) {
    return one_op(OpKind::Add, {{kAddElements * times}, {kAddElements * times}}, {}, backend);
  };
  WEFT_TRY(rates.memory_bytes_per_second, rate(add, bytes_of));
  return rates;
}

}  // namespace weft::peer
