// A training graph's running statistics, and what comes of its microbatches' fresh values where another graph
// blends them in (dag/fresh_statistics.h), on any backend that computes in the types of its values.
#pragma once

#include <gtest/gtest.h>

#include <map>

#include "dag/fresh_statistics.h"
#include "tests/peer/training.h"

namespace weft::peer {

inline std::unique_ptr<Executor> executor_of(const std::shared_ptr<const Graph>& graph, Backend& backend,
                                             const test::Model& model, std::vector<dag::ValueId> kept) {
  auto executor =
      value_or_fail(Executor::create(graph, std::make_shared<State>(backend), {.kept = std::move(kept)}));
  for (const dag::Initializer& initializer : graph->initializers())
    ok_or_fail(executor->state().write(weight_key(initializer), model.weights.at(initializer.name)));
  return executor;
}

// The same microbatch again and again would not show an order: each has data of its own.
inline void run_one(Executor& executor, MicrobatchMemory& microbatch, const test::Model& model, uint32_t m) {
  microbatch.context = {.seed = 9, .step = 1, .sample_position = m * 4, .microbatch_size = 4};
  for (const auto& [name, tensor] : model.inputs)
    ok_or_fail(executor.set_input(
        microbatch, name, is_float(tensor.dtype()) ? test::random_tensor(1, m, tensor.shape()) : tensor));
  ok_or_fail(executor.run(microbatch));
}

inline void expect_blended_bits(Backend& backend) {
  constexpr uint32_t kCount = 5;
  const test::Model model = test::residual_net(5);
  const auto graph = std::make_shared<const Graph>(dag::lower(
      value_or_fail(dag::differentiate(model.graph, dag::op_table())), dag::op_table(), backend.traits()));
  const auto fresh = dag::fresh_statistics(*graph);
  ASSERT_TRUE(fresh && !fresh->empty());
  std::vector<dag::ValueId> kept;
  for (const dag::FreshStatistic& statistic : *fresh)
    kept.insert(kept.end(), statistic.values.begin(), statistic.values.end());

  const auto whole = executor_of(graph, backend, model, {}), parts = executor_of(graph, backend, model, kept);
  const auto in_whole = value_or_fail(whole->make_microbatch());
  for (uint32_t m = 0; m < kCount; ++m) run_one(*whole, *in_whole, model, m);
  const auto in_parts = value_or_fail(parts->make_microbatch());
  in_parts->keeps_statistics = false;
  std::map<uint32_t, std::vector<Tensor>> rows;
  for (uint32_t m = kCount; m-- > 0;) {
    run_one(*parts, *in_parts, model, m);
    for (const dag::ValueId value : kept) rows[m].push_back(value_or_fail(parts->value(*in_parts, value)));
  }
  const std::shared_ptr<State> state(&parts->state(), [](State*) {});  // it is the executor's
  const auto blending = value_or_fail(Executor::create(
      std::make_shared<const Graph>(dag::blending_graph(*graph, *fresh, dag::op_table())), state, {}));
  const auto microbatch = value_or_fail(blending->make_microbatch());
  for (uint32_t m = 0; m < kCount; ++m) {
    for (size_t v = 0; v < kept.size(); ++v)
      ok_or_fail(blending->set_input(*microbatch, dag::fresh_input(kept[v]), rows.at(m)[v]));
    ok_or_fail(blending->run(*microbatch));
  }
  for (const dag::FreshStatistic& statistic : *fresh) {
    const auto key = dag::of_initializer(statistic.name, dag::StateSlot::RunningStatistic);
    const Tensor expected = value_or_fail(whole->state().read(key)),
                 actual = value_or_fail(parts->state().read(key));
    EXPECT_TRUE(std::equal(expected.bytes().begin(), expected.bytes().end(), actual.bytes().begin(),
                           actual.bytes().end()))
        << statistic.name;
    EXPECT_NE(to_doubles(actual), to_doubles(model.weights.at(statistic.name))) << "nothing was blended in";
  }
}

}  // namespace weft::peer
