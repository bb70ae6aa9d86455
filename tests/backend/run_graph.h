// Runs a graph on a backend, group by group, every value in memory of its own: no plan, nothing in place, so
// that a test sees each value.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "dag/op_table.h"
#include "peer/program.h"

namespace weft::peer {

class GraphRun {
 public:
  GraphRun(Backend& backend, const dag::Graph& graph)
      : backend_(backend), graph_(graph), memory_(graph.values().size()) {}

  // `values`: of graph.inputs() and then of graph.initializers(), in their orders.
  void run(const std::vector<dag::Tensor>& values, const StepContext& context = {},
           const Precision& precision = {}, bool rows_alone = false) {
    const size_t inputs = graph_.inputs().size();
    ASSERT_EQ(values.size(), inputs + graph_.initializers().size());
    for (size_t i = 0; i < values.size(); ++i)
      put(i < inputs ? graph_.inputs()[i] : graph_.initializers()[i - inputs].value, values[i]);
    for (const dag::Op& op : graph_.ops())
      if (op.kind == dag::OpKind::Constant) put(op.outputs[0], graph_.constant(op));
    std::vector<GroupSignature> groups = group_signatures(graph_);
    std::vector<std::unique_ptr<Kernel>> kernels;
    for (GroupSignature& group : groups) {
      group.precision = precision;
      group.rows_alone = rows_alone;
      auto kernel = backend_.make_kernel(graph_, group);
      ASSERT_TRUE(kernel.has_value()) << kernel.error().message;
      kernels.push_back(std::move(*kernel));
    }
    const Status prepared = backend_.prepare();
    ASSERT_TRUE(prepared.has_value()) << prepared.error().message;
    for (size_t i = 0; i < groups.size(); ++i) {
      const std::unique_ptr<Kernel> kernel = std::move(kernels[i]);
      implementations_[groups[i].ops.back().index] = kernel->implementation();
      std::vector<View> in, out;
      for (const dag::ValueId value : groups[i].inputs) in.push_back(view(value));
      for (const dag::ValueId value : groups[i].outputs) out.push_back(take(value));
      auto workspace = backend_.allocate(kernel->workspace_bytes());
      ASSERT_TRUE(workspace.has_value());
      const Status status = kernel->run(in, out, {workspace->get(), 0}, context);
      ASSERT_TRUE(status.has_value()) << status.error().message;
    }
  }
  dag::Tensor value(dag::ValueId id) {
    const dag::Value& value = graph_.value(id);
    auto tensor = backend_.download(view(id), value.spec, value.layout);
    EXPECT_TRUE(tensor.has_value());
    return tensor ? *tensor : dag::Tensor(value.spec);
  }
  std::string implementation(dag::OpId op) const { return implementations_.at(op.index); }

 private:
  View view(dag::ValueId id) { return {memory_[id.index].get(), 0}; }
  View take(dag::ValueId id) {
    const dag::Value& value = graph_.value(id);
    auto memory = backend_.allocate(backend_.storage_bytes(value.spec, value.layout));
    EXPECT_TRUE(memory.has_value());
    memory_[id.index] = std::move(*memory);
    return view(id);
  }
  void put(dag::ValueId id, const dag::Tensor& tensor) {
    const Status status = backend_.upload(tensor, take(id), graph_.value(id).layout);
    ASSERT_TRUE(status.has_value()) << status.error().message;
  }

  Backend& backend_;
  const dag::Graph& graph_;
  std::vector<std::unique_ptr<Memory>> memory_;
  std::map<uint32_t, std::string> implementations_;
};

// Every output of the graph, in its order. `inputs` as GraphRun::run takes them.
inline std::vector<dag::Tensor> outputs_of(Backend& backend, const dag::Graph& graph,
                                           const std::vector<dag::Tensor>& inputs,
                                           const StepContext& context = {}) {
  GraphRun run(backend, graph);
  run.run(inputs, context);
  std::vector<dag::Tensor> results;
  for (const auto& output : graph.outputs()) results.push_back(run.value(output.value));
  return results;
}

// The largest difference over the largest magnitude of `expected`; NaN and infinities must stand in the same
// places.
inline double relative_error(const dag::Tensor& actual, const dag::Tensor& expected) {
  const std::vector<double> a = dag::to_doubles(actual), e = dag::to_doubles(expected);
  double largest = 0, difference = 0;
  for (size_t i = 0; i < e.size(); ++i) {
    if (std::isnan(e[i]) != std::isnan(a[i]) || std::isinf(e[i]) != std::isinf(a[i])) return 1e300;
    if (std::isinf(e[i]) && e[i] != a[i]) return 1e300;
    if (!std::isfinite(e[i])) continue;
    largest = std::max(largest, std::abs(e[i]));
    difference = std::max(difference, std::abs(e[i] - a[i]));
  }
  return largest > 0 ? difference / largest : difference;
}

// Uniform in [-1, 1), a function of the seed alone.
inline dag::Tensor random_tensor(dag::Shape shape, uint64_t seed) {
  dag::TensorSpec spec{dag::DType::F32, std::move(shape)};
  Rng rng(seed, 0);
  std::vector<double> values(static_cast<size_t>(spec.element_count()));
  for (double& v : values) v = 2 * rng.uniform() - 1;
  return dag::from_doubles(std::move(spec), values);
}

inline bool same_bytes(const dag::Tensor& a, const dag::Tensor& b) {
  return a.spec() == b.spec() && std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin());
}

}  // namespace weft::peer
