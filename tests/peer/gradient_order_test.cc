// The order of a step's gradient sum (dag/gradient_order.h): one executor that adds up ranges ends in the
// bits of as many executors with a range each, whose sums are added.
#include "dag/gradient_order.h"

#include <gtest/gtest.h>

#include "dag/autodiff.h"
#include "dag/lower.h"
#include "dag/op_table.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/executor.h"
#include "tests/support/models.h"

namespace weft::peer {
namespace {

using dag::Tensor;

constexpr uint32_t kMicrobatches = 4;

template <typename T>
T value_or_fail(Result<T> result) {
  if (!result) ADD_FAILURE() << result.error().message;
  return std::move(result).value();
}
void ok_or_fail(const Status& status) { ASSERT_TRUE(status.has_value()) << status.error().message; }

TEST(GradientOrder, DealsMicrobatchesToRanges) {
  std::string turns;
  for (uint32_t m = 0; m < 6; ++m) {
    const dag::GradientTurn turn = dag::gradient_turn(m, 6, 3);
    turns += turn.first_range ? 'F' : '-';
    turns += turn.begins_range ? 'B' : '+';
    turns += turn.joins_first ? "J " : ". ";
  }
  EXPECT_EQ(turns, "FB. F+. -B. -+J -B. -+J ");
  for (uint32_t m = 0; m < 3; ++m)
    EXPECT_EQ(dag::gradient_turn(m, 3, 1), (dag::GradientTurn{.begins_range = m == 0}));
}

// Whoever has which ranges, each microbatch is in one sum, and what begins with the first range is one.
TEST(GradientOrder, SharesAreSumsOfTheirOwn) {
  const std::vector<uint32_t> ranges{2, 1, 3};
  constexpr uint32_t kAll = 12;
  EXPECT_EQ(dag::share_of(ranges, 0), (dag::RangeShare{0, 2}));
  EXPECT_EQ(dag::share_of(ranges, 2), (dag::RangeShare{3, 3}));
  std::string sums;
  for (uint32_t m = 0; m < kAll; ++m) {
    const uint32_t range = m / 2, replica = range < 2 ? 0 : range < 3 ? 1 : 2;
    const dag::RangeShare share = dag::share_of(ranges, replica);
    const dag::GradientTurn turn = dag::gradient_turn(m, kAll, 6, share);
    if (replica == 0)
      EXPECT_EQ(turn, dag::gradient_turn(m, kAll, 6));
    else
      EXPECT_EQ(turn, (dag::GradientTurn{.begins_range = m % 2 == 0}))
          << "in the first place, and joined to none";
    if (const auto sum = dag::sum_completed(m, kAll, 6, share)) {
      EXPECT_TRUE(dag::is_sent_as(share, *sum));
      sums += std::to_string(m) + "->" + std::to_string(*sum) + " ";
    }
  }
  EXPECT_EQ(sums, "3->0 5->2 7->3 9->4 11->5 ");
  EXPECT_FALSE(dag::is_sent_as({0, 2}, 1));
  EXPECT_FALSE(dag::is_sent_as({3, 3}, 2) || dag::is_sent_as({3, 3}, 6));
}

using Gradients = std::vector<std::vector<float>>;  // by parameter

// Of the microbatches [first, first + count) of a step, added up in so many ranges.
Gradients sums(const test::Model& model, Backend& backend, uint32_t first, uint32_t count, uint32_t ranges) {
  const dag::Graph graph = dag::lower(value_or_fail(dag::differentiate(model.graph, dag::op_table())),
                                      dag::op_table(), backend.traits());
  const auto executor = value_or_fail(
      Executor::create(std::make_shared<const dag::Graph>(graph), std::make_shared<State>(backend),
                       {.accumulates = count > 1, .sums_ranges = ranges > 1}));
  for (const auto& [name, tensor] : model.weights)
    ok_or_fail(executor->state().write(dag::of_initializer(name), tensor));
  const auto microbatch = value_or_fail(executor->make_microbatch());
  // Twice: what the step before left must not show.
  for (uint64_t step = 1; step <= 2; ++step)
    for (uint32_t m = 0; m < count; ++m) {
      microbatch->turn = dag::gradient_turn(m, count, ranges);
      microbatch->context = {
          .seed = 9, .step = step, .sample_position = (first + m) * 4, .microbatch_size = 4};
      for (const auto& initializer : graph.initializers())
        if (initializer.role == dag::InitializerRole::RunningStatistic)
          ok_or_fail(executor->state().write(weight_key(initializer), model.weights.at(initializer.name)));
      for (const auto& [name, tensor] : model.inputs)
        ok_or_fail(executor->set_input(
            *microbatch, name,
            is_float(tensor.dtype()) ? test::random_tensor(step, first + m, tensor.shape()) : tensor));
      ok_or_fail(executor->run(*microbatch));
    }
  Gradients gradients;
  for (size_t p = 0; p < executor->parameters().size(); ++p) {
    const Tensor gradient = value_or_fail(executor->gradient(p));
    gradients.emplace_back(gradient.as<float>().begin(), gradient.as<float>().end());
  }
  return gradients;
}

void add(const Gradients& from, Gradients& to) {
  for (size_t p = 0; p < to.size(); ++p)
    for (size_t i = 0; i < to[p].size(); ++i) to[p][i] += from[p][i];
}

// Two weights that are added have one gradient: one keeps it, the other gets a copy.
test::Model shared_gradient() {
  dag::GraphBuilder b(dag::op_table());
  const dag::TensorSpec spec{dag::DType::F32, {32}};
  const dag::ValueId x = b.input("x", {dag::DType::F32, {8, 32}});
  const dag::ValueId first = b.initializer("first", spec, dag::InitializerRole::Parameter);
  const dag::ValueId second = b.initializer("second", spec, dag::InitializerRole::Parameter);
  const dag::ValueId product = b.add(dag::OpKind::Mul, {x, b.add(dag::OpKind::Add, {first, second})});
  b.output("loss",
           b.add(dag::OpKind::ReduceSum, {product},
                 {{dag::Attr::Axes, dag::Ints{0, 1}}, {dag::Attr::KeepDims, int64_t{0}}}),
           dag::OutputRole::Loss);
  return {b.finish(),
          {{"first", test::random_tensor(1, 1, {32})}, {"second", test::random_tensor(1, 2, {32})}},
          {{"x", test::random_tensor(1, 3, {8, 32})}}};
}

class Ranges : public testing::TestWithParam<const char*> {};

// On the CPU backend, which keeps sums in float32 as links would carry them.
TEST_P(Ranges, GiveTheBitsOfReplicas) {
  const std::string_view name = GetParam();
  const test::Model model = name == "residual"      ? test::residual_net(5)
                            : name == "transformer" ? test::transformer(5)
                                                    : shared_gradient();
  const auto backend = value_or_fail(make_cpu_backend({.threads = 1, .pin = false}));
  for (const uint32_t ranges : {1u, 2u, 4u}) {
    const uint32_t length = kMicrobatches / ranges;
    Gradients replicas = sums(model, *backend, 0, length, 1);
    for (uint32_t r = 1; r < ranges; ++r) add(sums(model, *backend, r * length, length, 1), replicas);
    EXPECT_TRUE(sums(model, *backend, 0, kMicrobatches, ranges) == replicas) << ranges << " ranges";
  }
  EXPECT_TRUE(sums(model, *backend, 0, kMicrobatches, 2) != sums(model, *backend, 0, kMicrobatches, 1))
      << "the test wants sums whose order shows";
}

INSTANTIATE_TEST_SUITE_P(Models, Ranges, testing::Values("residual", "transformer", "shared_gradient"),
                         [](const auto& p) { return std::string(p.param); });

}  // namespace
}  // namespace weft::peer
