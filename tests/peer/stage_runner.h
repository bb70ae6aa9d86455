// Runs a graph as one piece, or cut into stages with tensors carried between them, in one process.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>

#include "dag/promote.h"
#include "dag/split.h"
#include "peer/executor.h"
#include "tests/support/models.h"

namespace weft::peer {

using dag::Graph;
using dag::OutputRole;
using dag::Tensor;
using dag::ValueId;

inline constexpr StepContext kContext{.seed = 7, .step = 3, .sample_position = 0, .microbatch_size = 4};

template <typename T>
T value_or_fail(Result<T> result) {
  if (!result) ADD_FAILURE() << result.error().message;
  return std::move(result).value();
}
inline void ok_or_fail(const Status& status) { ASSERT_TRUE(status.has_value()) << status.error().message; }

// On the reference backend the graph is in double: its F32 values are doubles too, which a cut edge would
// round.
inline Tensor as_in(const dag::TensorSpec& spec, const Tensor& tensor) {
  return spec.dtype == tensor.dtype() ? tensor : dag::promote_to_f64(tensor);
}

// One executor over one (sub-)graph with one microbatch in it. In a graph without segments inputs may be set
// and values read at any time; with segments only run() does, and at the last moment that is allowed.
struct Runner {
  std::unique_ptr<Executor> executor;
  std::unique_ptr<MicrobatchMemory> microbatch;
  std::vector<uint32_t> segment_of_op;
  std::map<uint32_t, Tensor> came;  // for inputs of segments that have not run
  std::map<std::string, Tensor> read;

  Runner(Graph graph, Backend& backend, const test::Model& model, ExecutorOptions options = {})
      : segment_of_op(options.segment_of_op) {
    executor = value_or_fail(Executor::create(std::make_shared<const Graph>(std::move(graph)),
                                              std::make_shared<State>(backend), std::move(options)));
    for (const auto& initializer : executor->graph().initializers())
      ok_or_fail(executor->state().write(
          weight_key(initializer),
          as_in(executor->graph().spec(initializer.value), model.weights.at(initializer.name))));
    microbatch = value_or_fail(executor->make_microbatch());
    microbatch->context = kContext;
    for (const ValueId input : executor->graph().inputs()) {
      const auto tensor = model.inputs.find(executor->graph().value(input).name);
      if (tensor != model.inputs.end())
        came[input.index] = as_in(executor->graph().spec(input), tensor->second);
      if (tensor != model.inputs.end() && segment_of_op.empty())
        ok_or_fail(executor->set_value(*microbatch, input, came.at(input.index)));
    }
  }

  uint32_t segment_of(ValueId value) const {
    return segment_of_op.empty() ? 0 : segment_of_op[executor->graph().value(value).producer.index];
  }
  void run(uint32_t segment) {
    for (const auto& [input, tensor] : came)
      if (segment_of({input}) == segment) ok_or_fail(executor->set_value(*microbatch, {input}, tensor));
    ok_or_fail(executor->run(*microbatch, segment));
    for (const auto& output : executor->graph().outputs())
      if (output.role == OutputRole::Loss && segment_of(output.value) == segment)
        read["loss"] = value_or_fail(executor->value(*microbatch, output.value));
  }

  // Every gradient, new running statistic and the loss, by "role name".
  void collect(std::map<std::string, Tensor>& results) {
    for (size_t i = 0; i < executor->parameters().size(); ++i)
      results["gradient " + executor->parameters()[i].name] = value_or_fail(executor->gradient(i));
    for (const auto& output : executor->graph().outputs()) {
      if (output.role == OutputRole::Loss && segment_of_op.empty())
        results["loss"] = value_or_fail(executor->value(*microbatch, output.value));
      if (output.role == OutputRole::StateUpdate)
        results["state " + output.name] =
            value_or_fail(executor->state().read(dag::of_initializer(output.name)));
    }
    results.insert(read.begin(), read.end());
  }
};

inline std::map<std::string, Tensor> run_whole(const Graph& graph, Backend& backend,
                                               const test::Model& model) {
  Runner runner(graph, backend, model);
  ok_or_fail(runner.executor->run(*runner.microbatch));
  std::map<std::string, Tensor> results;
  runner.collect(results);
  return results;
}

// How cut edges are carried: as host tensors, or by a copy on the device, where both ends lie plain and the
// segment that reads comes next.
enum class Carry { ByHost, OnDevice };

// Runs whatever segment has all it receives until all have run.
inline std::map<std::string, Tensor> run_split(const dag::Split& split, Backend& backend,
                                               const test::Model& model, Carry carry = Carry::ByHost) {
  std::vector<Runner> runners;
  for (uint32_t s = 0; s < split.stages.size(); ++s) {
    ExecutorOptions options;
    options.segment_of_op = split.stages[s].segment_of_op;
    for (const auto& edge : split.cut_edges)
      if (edge.from_stage == s) options.kept.push_back(edge.sent);
    runners.emplace_back(split.stages[s].graph, backend, model, std::move(options));
  }
  const auto segment_of = [&](uint32_t stage, ValueId value) {
    return split.stages[stage].segment_of_op[split.stages[stage].graph.value(value).producer.index];
  };
  std::vector<uint32_t> next(split.stages.size(), 0);
  std::vector<bool> carried(split.cut_edges.size(), false);
  for (bool progress = true; progress;) {
    progress = false;
    for (uint32_t s = 0; s < split.stages.size(); ++s) {
      if (next[s] == split.stages[s].segment_count) continue;
      bool ready = true;
      for (size_t e = 0; e < split.cut_edges.size(); ++e)
        if (split.cut_edges[e].to_stage == s && segment_of(s, split.cut_edges[e].received) <= next[s])
          ready = ready && carried[e];
      if (!ready) continue;
      runners[s].run(next[s]);
      for (size_t e = 0; e < split.cut_edges.size(); ++e) {
        const auto& edge = split.cut_edges[e];
        if (edge.from_stage != s || segment_of(s, edge.sent) != next[s]) continue;
        Runner &from = runners[s], &to = runners[edge.to_stage];
        const bool plain = from.executor->graph().value(edge.sent).layout == dag::Layout::Plain &&
                           to.executor->graph().value(edge.received).layout == dag::Layout::Plain;
        const bool is_next = next[edge.to_stage] == segment_of(edge.to_stage, edge.received);
        if (carry == Carry::OnDevice && plain && is_next)
          ok_or_fail(to.executor->copy_value(*to.microbatch, edge.received, *from.executor, *from.microbatch,
                                             edge.sent));
        else
          to.came[edge.received.index] = value_or_fail(from.executor->value(*from.microbatch, edge.sent));
        carried[e] = true;
      }
      ++next[s];
      progress = true;
    }
  }
  std::map<std::string, Tensor> results;
  for (uint32_t s = 0; s < split.stages.size(); ++s) {
    EXPECT_EQ(next[s], split.stages[s].segment_count) << "stage " << s << " waits for ever";
    runners[s].collect(results);
  }
  return results;
}

inline void expect_same_bits(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    ASSERT_EQ(tensor.spec(), b.at(name).spec()) << name;
    EXPECT_EQ(std::memcmp(tensor.bytes().data(), b.at(name).bytes().data(), tensor.bytes().size()), 0)
        << name << " differs";
  }
}

}  // namespace weft::peer
