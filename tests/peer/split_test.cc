// Laws 1 and 9 of the design: the pieces of a cut graph, run apart with tensors carried between them, give
// the very bits of the whole. Real kernels, in one process, two to four stages, cuts at random.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "base/rng.h"
#include "dag/autodiff.h"
#include "dag/lower.h"
#include "dag/promote.h"
#include "dag/split.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/backend/reference/reference_backend.h"
#include "peer/executor.h"
#include "plan/plan.h"
#include "tests/peer/stage_runner.h"
#include "tests/support/cuts.h"
#include "tests/support/models.h"

namespace weft::peer {
namespace {

using dag::OpId;
using dag::Phase;

Graph training_graph(const test::Model& model, const Backend& backend) {
  const bool reference = backend.name() == "reference";
  const Graph forward = reference ? dag::promote_to_f64(model.graph, dag::op_table()) : model.graph;
  const Graph differentiated = value_or_fail(dag::differentiate(forward, dag::op_table()));
  return dag::lower(differentiated, dag::op_table(),
                    {.fuse_elementwise = true, .convolution_layout = backend.traits().convolution_layout});
}

// Runs pieces that were differentiated one by one; values are carried over cut edges, and cotangent terms by
// name.
std::map<std::string, Tensor> run_pieces(const std::vector<Graph>& pieces, Backend& backend,
                                         const test::Model& model) {
  std::vector<Runner> runners;
  for (const Graph& piece : pieces) runners.emplace_back(piece, backend, model);
  std::map<std::string, Tensor>
      came;  // activations and cotangent terms, by the name of the input that takes them
  // Each piece is run again and again, with what has come by then, until everything has passed every border.
  for (size_t round = 0; round < 4 * pieces.size() + 2; ++round)
    for (Runner& runner : runners) {
      const Graph& piece = runner.executor->graph();
      for (const auto& initializer : piece.initializers())  // a run moves running statistics: they start anew
        if (initializer.role == dag::InitializerRole::RunningStatistic)
          ok_or_fail(runner.executor->state().write(
              weight_key(initializer),
              as_in(piece.spec(initializer.value), model.weights.at(initializer.name))));
      for (const ValueId input : piece.inputs()) {
        const std::string& name = piece.value(input).name;
        const auto& from = model.inputs.contains(name) ? model.inputs : came;
        if (from.contains(name))
          ok_or_fail(
              runner.executor->set_value(*runner.microbatch, input, as_in(piece.spec(input), from.at(name))));
      }
      ok_or_fail(runner.executor->run(*runner.microbatch));
      for (const auto& output : piece.outputs()) {
        if (output.role != OutputRole::Activation && output.role != OutputRole::Cotangent) continue;
        const dag::Op& producer =
            piece.producer(output.value);  // a running statistic is sent as it was before this run
        came[output.name] = producer.kind == dag::OpKind::Initializer
                                ? as_in(piece.spec(output.value), model.weights.at(producer.name))
                                : value_or_fail(runner.executor->value(*runner.microbatch, output.value));
      }
    }
  std::map<std::string, Tensor> results;
  for (Runner& runner : runners) runner.collect(results);
  return results;
}

struct Case {
  const char* model;
  const char* backend;
  uint32_t stages;
  bool wrap_around;
  bool anywhere = false;  // a stage has pieces of the row that do not lie next to each other
};

class SplitLaw : public testing::TestWithParam<Case> {};

TEST_P(SplitLaw, PiecesGiveTheBitsOfTheWhole) {
  const Case param = GetParam();
  auto backend = std::string_view(param.backend) == "cpu"
                     ? value_or_fail(make_cpu_backend({.threads = 1, .pin = false}))
                     : make_reference_backend();
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const test::Model made =
        std::string_view(param.model) == "residual"
            ? test::residual_net(seed, {.batch = 4, .channels = 8, .size = 8, .blocks = 3})
            : test::transformer(seed, {.batch = 4, .layers = 3});
    const test::Model model =
        std::string_view(param.model) == "rounded" ? test::with_rounded_parameters(made) : made;
    const Graph graph = training_graph(model, *backend);
    Rng rng(seed, 99);
    const uint32_t pieces = param.stages * (param.anywhere ? 3 : 1);
    auto by_origin = test::random_stages(graph, pieces, rng, param.wrap_around);
    for (uint32_t& stage : by_origin) stage %= param.stages;
    const auto stages =
        seed % 2 == 0
            ? by_origin
            : dag::move_sums(graph, std::span<const std::shared_ptr<const dag::Lowered>>{}, by_origin);
    const uint32_t count = *std::max_element(stages.begin(), stages.end()) + 1;
    ASSERT_GE(count, 2u) << "the repair left a single stage: the groups leave no place to cut";
    const auto split = dag::split(graph, stages, count, dag::op_table());
    if (!split && split.error().message.find("has no ops") != std::string::npos)
      continue;  // the repair emptied a stage
    ASSERT_TRUE(split.has_value()) << split.error().message;

    size_t computing = 0, whole = 0;
    const auto computes = [](const dag::Op& op) { return !op.inputs.empty(); };
    for (const auto& stage : split->stages)
      computing +=
          static_cast<size_t>(std::count_if(stage.graph.ops().begin(), stage.graph.ops().end(), computes));
    whole = static_cast<size_t>(std::count_if(graph.ops().begin(), graph.ops().end(), computes));
    EXPECT_EQ(computing, whole) << "every op in exactly one stage";
    size_t kernels = 0;
    for (const auto& stage : split->stages) kernels += group_signatures(stage.graph).size();
    EXPECT_EQ(kernels, group_signatures(graph).size()) << "a border never changes a kernel";

    const auto whole_results = run_whole(graph, *backend, model);
    expect_same_bits(whole_results, run_split(*split, *backend, model));
    expect_same_bits(whole_results, run_split(*split, *backend, model, Carry::OnDevice));
    for (const uint32_t every : {1u, 2u}) {
      SCOPED_TRACE("recomputed by one stage of " + std::to_string(every));
      const dag::Split again = test::recomputed(*split, [&](uint32_t s) { return s % every == 0; });
      expect_same_bits(whole_results, run_split(again, *backend, model));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, SplitLaw,
    testing::Values(Case{"residual", "reference", 2, false}, Case{"residual", "reference", 4, false},
                    Case{"residual", "cpu", 2, false}, Case{"residual", "cpu", 3, false},
                    Case{"residual", "cpu", 4, true}, Case{"transformer", "reference", 3, true},
                    Case{"transformer", "cpu", 2, false}, Case{"transformer", "cpu", 3, true},
                    Case{"transformer", "cpu", 4, false}, Case{"transformer", "cpu", 3, false, true},
                    Case{"residual", "cpu", 2, false, true}, Case{"residual", "reference", 3, false, true},
                    Case{"rounded", "cpu", 2, false}, Case{"rounded", "cpu", 3, true}),
    [](const auto& param_info) {
      const Case& c = param_info.param;
      return std::string(c.model) + "_" + c.backend + "_" + std::to_string(c.stages) +
             (c.wrap_around ? "_wrap" : "") + (c.anywhere ? "_anywhere" : "");
    });

// As the planner cuts a tied model: both its ends in the first stage.
TEST(SplitLaw, ARingGivesTheBitsOfTheWhole) {
  const auto backend = value_or_fail(make_cpu_backend({.threads = 1, .pin = false}));
  int rings = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 97);
    const auto stages = static_cast<uint32_t>(2 + rng.below(3));
    const test::Model model =
        test::transformer(seed, {.layers = 6, .vocabulary = 96 + 32 * static_cast<int64_t>(rng.below(3))});
    const Graph graph = training_graph(model, *backend);
    std::vector<plan::DeviceView> devices;
    for (uint32_t d = 0; d < stages; ++d)
      devices.push_back({.name = std::to_string(d),
                         .rates = {1e9 * (1 + rng.uniform()), 1e9, 1e9, 1e-6},
                         .memory = {1 << 30}});
    plan::ClusterView cluster(devices);
    for (uint32_t a = 0; a < stages; ++a)
      for (uint32_t b = 0; b < stages; ++b)
        if (a != b) cluster.set_link(a, b, {1e6, {}});
    const auto plan = value_or_fail(
        plan::make_plan({.graph = &graph, .microbatches = 4, .stages = stages, .cluster = cluster}));
    const auto split = value_or_fail(dag::split(graph, plan.stage_of_op, stages, dag::op_table()));
    rings += std::any_of(split.cut_edges.begin(), split.cut_edges.end(), [&](const dag::CutEdge& edge) {
      return edge.to_stage == 0 && graph.producer(edge.value).phase == Phase::Forward;
    });
    const auto whole_results = run_whole(graph, *backend, model);
    expect_same_bits(whole_results, run_split(split, *backend, model));
    expect_same_bits(whole_results, run_split(split, *backend, model, Carry::OnDevice));
  }
  EXPECT_GE(rings, 5);
}

// ---- law 1 ----

// Values through which a cotangent can come back from the loss.
std::vector<bool> reaching_loss(const Graph& graph) {
  std::vector<bool> reaching(graph.values().size(), false);
  reaching[graph.find_output(OutputRole::Loss)->value.index] = true;
  for (size_t i = graph.ops().size(); i-- > 0;) {
    const dag::Op& op = graph.ops()[i];
    if (dag::op_table().row(op.kind).vjp == nullptr) continue;
    for (const ValueId output : op.outputs)
      if (reaching[output.index])
        for (const ValueId input : op.inputs)
          if (input.valid() && is_float(graph.spec(input).dtype)) reaching[input.index] = true;
  }
  return reaching;
}

// What stage `stage` of the cut forward graph has to know of the others to differentiate by itself.
dag::Border border_of(const Graph& whole, const dag::Split& split, uint32_t stage) {
  dag::Border border;
  const dag::StageGraph& piece = split.stages[stage];
  for (const OpId op : piece.op_in_whole) border.index_in_whole.push_back(op.index);
  const std::vector<bool> reaching = reaching_loss(whole);
  for (const auto& edge : split.cut_edges) {
    if (edge.from_stage == stage)
      border.sent.emplace_back("edge." + std::to_string(edge.value.index), edge.sent);
    if (!is_float(whole.spec(edge.value).dtype)) continue;
    if (edge.to_stage == stage && reaching[edge.value.index]) border.received.push_back(edge.received);
    if (edge.from_stage != stage) continue;
    // A term for each use of the value in the other stage through which a cotangent comes.
    const dag::StageGraph& other = split.stages[edge.to_stage];
    for (uint32_t i = 0; i < other.graph.ops().size(); ++i) {
      const dag::Op& op = other.graph.ops()[i];
      const OpId in_whole = other.op_in_whole[i];
      bool flows = !op.inputs.empty() && dag::op_table().row(op.kind).vjp != nullptr;
      if (flows) flows = reaching[whole.op(in_whole).outputs[0].index];
      for (uint32_t k = 0; k < op.inputs.size(); ++k)
        if (flows && op.inputs[k] == edge.received)
          border.terms.push_back({edge.sent, {in_whole.index, k}, dag::term_name({in_whole.index, k})});
    }
  }
  return border;
}

// What an op is, whatever its operands are called.
std::multiset<std::string> computing_ops(const Graph& graph) {
  std::multiset<std::string> ops;
  for (const dag::Op& op : graph.ops()) {
    if (op.inputs.empty()) continue;
    std::string text = std::string(op.phase == Phase::Forward ? "forward " : "backward ") +
                       std::string(to_string(op.kind)) + " " + to_string(op.attributes);
    for (const ValueId input : op.inputs)
      text += " " + (input.valid() ? to_string(graph.spec(input)) : std::string("-"));
    ops.insert(text);
  }
  return ops;
}

class DifferentiateAndSplitCommute : public testing::TestWithParam<std::tuple<const char*, uint32_t, bool>> {
};

TEST_P(DifferentiateAndSplitCommute, InOpsAndInBits) {
  const auto [name, stage_count, wrap_around] = GetParam();
  const auto backend = make_reference_backend();
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const test::Model model = std::string_view(name) == "residual" ? test::residual_net(seed, {.blocks = 3})
                                                                   : test::transformer(seed, {.layers = 3});
    const Graph forward = dag::promote_to_f64(model.graph, dag::op_table());
    const Graph whole = value_or_fail(dag::differentiate(forward, dag::op_table()));
    Rng rng(seed, 98);
    const auto stages = test::random_stages(whole, stage_count, rng, wrap_around);
    ASSERT_GT(whole.ops().size(), forward.ops().size());
    for (uint32_t i = 0; i < forward.ops().size(); ++i)
      ASSERT_EQ(whole.ops()[i].kind, forward.ops()[i].kind) << "the forward ops come first, all of them";

    const dag::Split differentiated_then_split =
        value_or_fail(dag::split(whole, stages, stage_count, dag::op_table()));
    const dag::Split cut = value_or_fail(
        dag::split(forward, std::span(stages).first(forward.ops().size()), stage_count, dag::op_table()));
    std::vector<Graph> pieces;
    for (uint32_t s = 0; s < stage_count; ++s) {
      pieces.push_back(value_or_fail(
          dag::differentiate_piece(cut.stages[s].graph, border_of(forward, cut, s), dag::op_table())));
      EXPECT_EQ(computing_ops(pieces[s]), computing_ops(differentiated_then_split.stages[s].graph))
          << "stage " << s;
    }
    expect_same_bits(run_whole(whole, *backend, model), run_pieces(pieces, *backend, model));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DifferentiateAndSplitCommute,
                         testing::Combine(testing::Values("residual", "transformer"),
                                          testing::Values(2u, 3u, 4u), testing::Bool()),
                         [](const auto& param_info) {
                           return std::string(std::get<0>(param_info.param)) + "_" +
                                  std::to_string(std::get<1>(param_info.param)) +
                                  (std::get<2>(param_info.param) ? "_wrap" : "");
                         });

TEST(Split, RefusesACutThroughAFusionGroup) {
  auto backend = value_or_fail(make_cpu_backend({.threads = 1, .pin = false}));
  const test::Model model = test::residual_net(1);
  const Graph graph = training_graph(model, *backend);
  std::vector<uint32_t> stages(graph.ops().size(), 0);
  uint32_t cut = 0;
  for (uint32_t i = 1; i < graph.ops().size() && cut == 0; ++i)
    if (graph.ops()[i].group.valid() && graph.ops()[i].group == graph.ops()[i - 1].group) cut = i;
  ASSERT_GT(cut, 0u) << "the model has no fusion group";
  for (uint32_t i = cut; i < stages.size(); ++i) stages[i] = 1;
  stages = dag::stages_by_origin(graph, stages);
  const auto split = dag::split(graph, stages, 2, dag::op_table());
  ASSERT_FALSE(split.has_value());
  EXPECT_EQ(split.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(split.error().message.find("fusion group"), std::string::npos) << split.error().message;
}

TEST(Split, SendsAValueOnceToEachStageThatNeedsIt) {
  auto backend = make_reference_backend();
  const test::Model model = test::transformer(3);
  const Graph graph = training_graph(model, *backend);
  std::vector<uint32_t> stages(graph.ops().size());
  for (uint32_t i = 0; i < stages.size(); ++i) stages[i] = i * 3 / static_cast<uint32_t>(stages.size());
  stages = dag::stages_by_origin(graph, stages);
  const auto split = dag::split(graph, stages, 3, dag::op_table());
  ASSERT_TRUE(split.has_value()) << split.error().message;
  std::map<std::pair<uint32_t, uint32_t>, int> sent;
  for (const auto& edge : split->cut_edges) {
    const int times = ++sent[std::pair(edge.value.index, edge.to_stage)];
    EXPECT_EQ(times, 1);
    EXPECT_NE(edge.from_stage, edge.to_stage);
  }
}

}  // namespace
}  // namespace weft::peer
