// Whatever the order of messages, the state that a run's last checkpoint holds is, bit for bit, that of the
// whole graph trained alone (laws 8 and 9). So it is where several replicas, each with a cut of its own,
// compute parts of every step and add up its gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "dag/autodiff.h"
#include "dag/lower.h"
#include "dag/passes/adapt.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "tests/pipeline/one_run.h"
#include "tests/pipeline/perceptron.h"

namespace weft::pipeline {
namespace {

// With adapters beside weights that are frozen; one of them is a table that is multiplied, too.
test::Model adapted_transformer() {
  test::Model model = test::transformer(3, {.batch = kMicrobatchSize});
  dag::GraphCopy frozen(model.graph, dag::op_table());
  for (uint32_t i = 0; i < model.graph.ops().size(); ++i) frozen.copy(dag::OpId{i});
  frozen.copy_outputs();
  for (const dag::Initializer& initializer : model.graph.initializers())
    frozen.builder().set_role(initializer.name, dag::InitializerRole::Frozen);
  const Graph base = frozen.finish();
  dag::Adapted adapted = value_or_fail(dag::adapt(
      base, {.targets = {"*.q.weight", "*.fc.weight", "wte"}, .rank = 2, .alpha = 4, .dropout = 0.1},
      /*trains=*/true, dag::op_table()));
  for (const dag::Adapter& adapter : adapted.adapters)
    for (const std::string& factor : {adapter.a(), adapter.b()})
      model.weights[factor] =
          test::random_tensor(5, model.weights.size(),
                              adapted.graph.spec(adapted.graph.find_initializer(factor)->value).shape, 0.2);
  model.graph = std::move(adapted.graph);
  return model;
}

class Pipeline : public testing::TestWithParam<Case> {};

TEST_P(Pipeline, EndsInTheBitsOfOneMachineWhateverTheOrderOfMessages) {
  const Case& param = GetParam();
  const auto backend = value_or_fail(peer::make_cpu_backend({.threads = 1}));
  const test::Model model = param.model == "residual"     ? test::residual_net(3, {.batch = kMicrobatchSize})
                            : param.model == "perceptron" ? perceptron()
                            : param.model == "adapted"    ? adapted_transformer()
                                                          : test::transformer(3, {.batch = kMicrobatchSize});
  const Graph whole =
      dag::lower(value_or_fail(dag::differentiate(model.graph, dag::op_table())), dag::op_table(),
                 {.fuse_elementwise = true, .convolution_layout = backend->traits().convolution_layout});
  const auto spec = training_spec(param);
  const State expected = train_alone(whole, model, *backend, spec);
  int played = 0;
  for (uint64_t seed = 1; played < 4 && seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 11);
    const auto splits = random_splits(whole, param, rng, seed);
    if (!splits) continue;
    ++played;
    Cluster cluster(whole, model, *splits, param, *backend, spec, rng);
    cluster.play();
    if (HasFailure()) return;
    ASSERT_EQ(cluster.state().size(), expected.size());
    for (const auto& [key, tensor] : expected) {
      const auto numbers = to_doubles(tensor);
      EXPECT_TRUE(std::all_of(numbers.begin(), numbers.end(), [](double n) { return std::isfinite(n); }))
          << to_string(key);
      const auto found = cluster.state().find(key);
      ASSERT_NE(found, cluster.state().end()) << to_string(key);
      const auto a = tensor.bytes(), b = found->second.bytes();
      EXPECT_TRUE(a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0)
          << to_string(key) << " differs";
    }
    std::vector<uint64_t> steps, skipped;
    for (const auto& event : cluster.events()) {
      if (event.kind == proto::JobEventKind::Step) steps.push_back(event.step);
      if (event.skipped) skipped.push_back(event.step);
    }
    EXPECT_EQ(skipped, param.skips ? (std::vector<uint64_t>{1, 3}) : std::vector<uint64_t>{});
    EXPECT_EQ(steps, (std::vector<uint64_t>{1, 2, 3, 4, 5})) << "committed without a gap";
    EXPECT_EQ(cluster.checkpoints(), (std::vector<uint64_t>{2, 4, 5}));
    EXPECT_EQ(cluster.rounds(), (std::vector<uint64_t>{1, 3}))
        << "a snapshot of every step, for they are small";
  }
  EXPECT_GE(played, 1);
}

INSTANTIATE_TEST_SUITE_P(Models, Pipeline,
                         testing::Values(Case{"residual", 2}, Case{"residual", 4, 0.5},
                                         Case{"residual", 3, 0.5, true}, Case{"residual", 3, 0, false, true},
                                         Case{"residual", 2, 0.5, false, true}, Case{"transformer", 2, 0.5},
                                         Case{"transformer", 3, 0, true}, Case{"transformer", 4, 0.5}));

INSTANTIATE_TEST_SUITE_P(Adapters, Pipeline,
                         testing::Values(Case{"adapted", 2, 0.5}, Case{"adapted", 4, 0},
                                         Case{"adapted", 3, 0.5, true},
                                         Case{"adapted", 2, 0.5, false, false, {2, 2}}));

INSTANTIATE_TEST_SUITE_P(
    ExactReplicas, Pipeline,
    testing::Values(
        Case{"transformer", 1, 0, false, false, {1, 1}}, Case{"transformer", 3, 0.5, false, false, {1, 1}},
        Case{"transformer", 2, 0.5, false, false, {2, 2}}, Case{"transformer", 2, 0, false, false, {1, 2, 1}},
        Case{"residual", 1, 0, false, false, {1, 1}}, Case{"residual", 3, 0.5, false, false, {2, 2}},
        Case{"residual", 2, 0.5, true, true, {1, 2, 1}}, Case{"residual", 3, 0, false, true, {1, 1, 1, 1}},
        Case{"perceptron", 2, 0.5, false, true, {2, 2}}, Case{"perceptron", 3, 0, false, true, {1, 1, 2}},
        Case{"transformer", 3, 0.5, true, false, {1, 3}}, Case{"transformer", 2, 0.5, false, false, {3, 1}},
        Case{"transformer", 3, 0.5, false, false, {1, 1, 1, 1}}));

Case sharing(Case of, bool momentum = false) {
  of.shares_slots = true;
  of.momentum = momentum;
  return of;
}
INSTANTIATE_TEST_SUITE_P(SharedSlots, Pipeline,
                         testing::Values(sharing({"transformer", 1, 0, false, false, {1, 1}}),
                                         sharing({"transformer", 3, 0.5, false, false, {1, 1}}),
                                         sharing({"transformer", 2, 0, true, false, {1, 2, 1}}, true),
                                         sharing({"residual", 1, 0, false, false, {1, 1}}),
                                         sharing({"residual", 3, 0.5, false, false, {2, 2}}, true),
                                         sharing({"residual", 2, 0.5, true, true, {1, 2, 1}}),
                                         sharing({"residual", 3, 0, false, true, {1, 1, 1, 1}}),
                                         sharing({"perceptron", 2, 0.5, false, true, {2, 2}}),
                                         sharing({"perceptron", 3, 0, false, true, {1, 1, 2}}),
                                         sharing({"adapted", 2, 0.5, false, false, {3, 1}}),
                                         sharing({"transformer", 3, 0.5, false, false, {1, 1, 1, 1}}),
                                         sharing({"transformer", 2, 0.5, false, false, {1, 2, 1}, true}),
                                         sharing({"residual", 3, 0, false, true, {2, 2}, true}, true)));

INSTANTIATE_TEST_SUITE_P(CodedSlots, Pipeline,
                         testing::Values(Case{"transformer", 3, 0.5, true, false, {}, true},
                                         Case{"residual", 2, 0.5, false, true, {}, true},
                                         Case{"adapted", 3, 0, false, false, {}, true},
                                         Case{"transformer", 2, 0.5, false, false, {1, 2, 1}, true}));

}  // namespace
}  // namespace weft::pipeline
