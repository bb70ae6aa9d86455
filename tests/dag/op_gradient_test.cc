// Every vjp against central differences, in double on the reference kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "dag/op_table.h"
#include "peer/backend/reference/reference_kernels.h"
#include "tests/dag/op_cases.h"

namespace weft::dag {
namespace {

using peer::RefValue;

constexpr double kStep = 1e-5;
constexpr double kTolerance = 1e-6;
constexpr uint64_t kSeeds[] = {1, 2, 3, 4, 5, 6, 7, 8};
const peer::StepContext kContext{.seed = 42, .step = 3, .sample_position = 2, .microbatch_size = 4};

// Values of a graph, by value index.
using Values = std::vector<RefValue>;

// Runs the ops of `graph` from `first` on; Inputs must be there.
void run(const Graph& graph, size_t first, Values& values) {
  values.resize(graph.values().size());
  for (size_t i = first; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    if (op.kind == OpKind::Input) continue;
    if (op.kind == OpKind::Constant) {
      values[op.outputs[0].index] = peer::ref_from_tensor(graph.constant(op));
      continue;
    }
    std::vector<const RefValue*> inputs;
    for (const ValueId input : op.inputs) inputs.push_back(input.valid() ? &values[input.index] : nullptr);
    std::vector<RefValue> outputs;
    for (const ValueId output : op.outputs) outputs.push_back({graph.spec(output), {}, {}});
    const Status status = peer::run_reference_op(op, inputs, outputs, kContext);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    for (size_t k = 0; k < outputs.size(); ++k) values[op.outputs[k].index] = std::move(outputs[k]);
  }
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// d <cotangent, output 0> / d operand, element by element.
std::vector<double> central_differences(const OpCaseGraph& made, Values values, ValueId operand,
                                        const std::vector<double>& cotangent) {
  const Graph& graph = made.builder.graph();
  const size_t op = graph.value(made.outputs[0]).producer.index;
  std::vector<double> slopes;
  for (size_t i = 0; i < values[operand.index].reals.size(); ++i) {
    double& x = values[operand.index].reals[i];
    const double middle = x;
    const auto value_at = [&](double place) {
      x = place;
      run(graph, op, values);
      return dot(cotangent, values[made.outputs[0].index].reals);
    };
    const double above = value_at(middle + kStep), below = value_at(middle - kStep);
    values[operand.index].reals[i] = middle;
    slopes.push_back((above - below) / (2 * kStep));
  }
  return slopes;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

// The largest error over all operands, relative to the largest slope of each.
void check_gradient(const OpCase& op_case, double& worst) {
  OpCaseGraph made = build_op_case(op_case);
  Values values(made.builder.graph().values().size());
  for (size_t i = 0; i < made.inputs.size(); ++i)
    if (made.inputs[i].valid()) values[made.inputs[i].index] = peer::ref_from_tensor(*op_case.inputs[i]);
  run(made.builder.graph(), 0, values);

  const OpCaseGraph forward = made;
  const Values forward_values = values;
  const TensorSpec out = made.builder.spec(made.outputs[0]);
  const ValueId cotangent = made.builder.input("cotangent", out);
  std::vector<double> weights(static_cast<size_t>(out.element_count()));
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = std::cos(1.7 * static_cast<double>(i) + 0.3);
  values.resize(made.builder.graph().values().size());
  values[cotangent.index] = {out, weights, {}};

  const size_t backward = made.builder.graph().ops().size();
  std::vector<ValueId> cotangents(made.outputs.size());
  cotangents[0] = cotangent;
  VjpContext context(made.builder, made.builder.graph().producer(made.outputs[0]), cotangents);
  op_table().row(op_case.kind).vjp(context);
  run(made.builder.graph(), backward, values);

  for (size_t i = 0; i < made.inputs.size(); ++i) {
    if (!made.inputs[i].valid() || !is_float(made.builder.spec(made.inputs[i]).dtype)) continue;
    SCOPED_TRACE("operand " + std::to_string(i));
    const ValueId gradient = context.input_cotangents()[i];
    const auto& none = op_case.no_gradient;
    if (std::find(none.begin(), none.end(), i) != none.end()) {
      EXPECT_FALSE(gradient.valid());
      continue;
    }
    // An integer result of a cast carries nothing back.
    if (!is_float(out.dtype)) continue;
    ASSERT_TRUE(gradient.valid());
    ASSERT_EQ(made.builder.spec(gradient), made.builder.spec(made.inputs[i]));
    const auto numeric = central_differences(forward, forward_values, made.inputs[i], weights);
    const auto& analytic = values[gradient.index].reals;
    ASSERT_EQ(analytic.size(), numeric.size());
    const double scale = std::max(largest(numeric), 1e-3);
    for (size_t k = 0; k < numeric.size(); ++k) {
      worst = std::max(worst, std::abs(analytic[k] - numeric[k]) / scale);
      ASSERT_LE(std::abs(analytic[k] - numeric[k]), kTolerance * scale)
          << "element " << k << ": vjp " << analytic[k] << ", differences " << numeric[k];
    }
  }
}

TEST(OpGradient, EveryVjpAgreesWithCentralDifferences) {
  int checked = 0;
  double worst = 0;
  for (const uint64_t seed : kSeeds)
    for (const OpCase& op_case : all_op_cases(seed)) {
      if (op_table().row(op_case.kind).differentiability != Differentiability::Differentiable) continue;
      if (!op_case.smooth || !is_float(op_case.inputs[op_case.kind == OpKind::Where ? 1 : 0]->dtype()))
        continue;
      SCOPED_TRACE("seed " + std::to_string(seed) + ", case " + op_case.name);
      check_gradient(op_case, worst);
      ++checked;
    }
  std::printf("%d cases, largest relative error %.1e\n", checked, worst);
  EXPECT_GT(checked, 1000);
}

TEST(OpGradient, EveryOpButTheLeavesHasACase) {
  std::set<OpKind> seen;
  std::set<std::string> names;
  for (const OpCase& op_case : all_op_cases(1)) {
    seen.insert(op_case.kind);
    EXPECT_TRUE(names.insert(op_case.name).second) << "two cases named " << op_case.name;
  }
  for (const OpRow& row : op_table().rows())
    EXPECT_TRUE(row.family == Family::Leaf || seen.count(row.kind)) << to_string(row.kind) << " has no case";
}

TEST(OpGradient, EveryDifferentiableOpHasASmoothCase) {
  std::set<OpKind> seen;
  for (const OpCase& op_case : all_op_cases(1))
    if (op_case.smooth) seen.insert(op_case.kind);
  seen.insert(OpKind::RoundThrough);  // its gradient is not its slope: the test below
  seen.insert(OpKind::RoundToHalf);
  for (const OpRow& row : op_table().rows())
    EXPECT_TRUE(row.vjp == nullptr || seen.count(row.kind))
        << to_string(row.kind) << " has no case to differentiate";
}

TEST(OpGradient, RoundingHandsTheCotangentOn) {
  for (const OpKind kind : {OpKind::RoundThrough, OpKind::RoundToHalf}) {
    GraphBuilder builder(op_table());
    const ValueId x = builder.input("x", {DType::F32, {3}});
    const ValueId y = builder.add(kind, {x}, {{Attr::DType, static_cast<int64_t>(DType::F16)}});
    const ValueId cotangent = builder.input("cotangent", {DType::F32, {3}});
    VjpContext context(builder, builder.graph().producer(y), {cotangent});
    op_table().row(kind).vjp(context);
    EXPECT_EQ(context.input_cotangents()[0], cotangent);
  }
}

}  // namespace
}  // namespace weft::dag
