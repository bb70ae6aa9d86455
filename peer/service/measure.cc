#include "peer/service/measure.h"

#include <algorithm>
#include <chrono>
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
constexpr int64_t kMatmulSize = 512;
constexpr int64_t kAddElements = int64_t{2} << 20;  // three values of 8 MiB: beyond most caches

// A graph with one op that matters, its operands as inputs.
dag::Graph one_op(OpKind kind, const std::vector<Shape>& operands, dag::Attributes attributes,
                  const Backend& backend) {
  GraphBuilder builder(dag::op_table());
  std::vector<ValueId> inputs;
  for (const Shape& shape : operands)
    inputs.push_back(builder.input("x" + std::to_string(inputs.size()), {DType::F32, shape}));
  builder.output("y", builder.add(kind, inputs, std::move(attributes)), dag::OutputRole::Prediction);
  return dag::lower(builder.finish(), dag::op_table(),
                    backend.traits());
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

// Seconds of a run: the median of the fastest quarter, because rates are those of a device that does nothing
// else, and this machine may be busy right now.
Result<double> time_run(dag::Graph graph, Backend& backend) {
  WEFT_TRY(const auto executor, Executor::create(std::make_shared<const dag::Graph>(std::move(graph)),
                                                 std::make_shared<State>(backend), {}));
  WEFT_TRY(const auto microbatch, executor->make_microbatch());
  for (const ValueId input : executor->graph().inputs())
    WEFT_TRY_STATUS(executor->set_value(*microbatch, input, ordinary(executor->graph().spec(input))));
  const auto run = [&]() -> Result<double> {
    const auto begin = Clock::now();
    WEFT_TRY_STATUS(executor->run(*microbatch));
    WEFT_TRY_STATUS(backend.synchronize());
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  WEFT_TRY_STATUS(run());  // warm
  std::vector<double> seconds;
  const auto end = Clock::now() + kTimeForEach;
  while (seconds.size() < kRunsMin || (seconds.size() < kRunsMax && Clock::now() < end)) {
    WEFT_TRY(const double once, run());
    seconds.push_back(once);
  }
  std::sort(seconds.begin(), seconds.end());
  return std::max(seconds[seconds.size() / 8], 1e-9);
}

// Several in a row, so that conversions between layouts weigh about as much as in a network.
dag::Graph convolutions(const Backend& backend) {
  GraphBuilder builder(dag::op_table());
  ValueId x = builder.input("x", {DType::F32, {4, 64, 28, 28}});
  for (int layer = 0; layer < 3; ++layer) {
    const ValueId w = builder.input("w" + std::to_string(layer), {DType::F32, {64, 64, 3, 3}});
    x = builder.add(OpKind::Conv, {x, w},
                    {{Attr::Strides, Ints{1, 1}},
                     {Attr::Dilations, Ints{1, 1}},
                     {Attr::Pads, Ints{1, 1, 1, 1}},
                     {Attr::Groups, int64_t{1}}});
  }
  builder.output("y", x, dag::OutputRole::Prediction);
  return dag::lower(builder.finish(), dag::op_table(),
                    backend.traits());
}

double flops_of(const dag::Graph& graph) {
  double flops = 0;
  for (const dag::Op& op : graph.ops())
    if (op.kind == OpKind::MatMul || op.kind == OpKind::Conv)
      flops += static_cast<double>(op_flops(graph, op).value);
  return flops;
}

}  // namespace

Result<plan::Rates> measure_rates(Backend& backend) {
  plan::Rates rates;
  WEFT_TRY(rates.kernel_seconds, time_run(one_op(OpKind::Neg, {{16}}, {}, backend), backend));
  const auto net = [&](double seconds) { return std::max(seconds - rates.kernel_seconds, seconds / 2); };

  dag::Graph matmul =
      one_op(OpKind::MatMul, {{kMatmulSize, kMatmulSize}, {kMatmulSize, kMatmulSize}}, {}, backend);
  const double matmul_flops = flops_of(matmul);
  WEFT_TRY(const double matmul_seconds, time_run(std::move(matmul), backend));
  rates.matmul_flops_per_second = matmul_flops / net(matmul_seconds);

  dag::Graph convolution = convolutions(backend);
  const double convolution_flops = flops_of(convolution);
  WEFT_TRY(const double convolution_seconds, time_run(std::move(convolution), backend));
  rates.convolution_flops_per_second = convolution_flops / net(convolution_seconds);

  WEFT_TRY(const double add_seconds,
           time_run(one_op(OpKind::Add, {{kAddElements}, {kAddElements}}, {}, backend), backend));
  rates.memory_bytes_per_second = 3.0 * sizeof(float) * static_cast<double>(kAddElements) / net(add_seconds);
  return rates;
}

}  // namespace weft::peer
