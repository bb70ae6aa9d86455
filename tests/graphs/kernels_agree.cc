#include "tests/graphs/kernels_agree.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "peer/backend/reference/reference_kernels.h"
#include "tests/peer/stage_runner.h"

namespace weft::peer {
namespace {

using dag::DType;
using dag::OpId;
using dag::OpKind;

// A step in the function: two arithmetics may come out on different sides of it.
bool jumps(OpKind kind) {
  return kind == OpKind::Cast || kind == OpKind::RoundThrough || kind == OpKind::RoundToHalf ||
         kind == OpKind::Mod || kind == OpKind::ReluGrad ||
         dag::op_table().row(kind).differentiability == dag::Differentiability::Zero;
}

// What the reference makes of a group's operands, rounded to each value's dtype after every op.
class ByReference {
 public:
  ByReference(const Graph& graph, GraphRun& run) : graph_(graph), run_(run) {}

  Result<std::map<uint32_t, Tensor>> group(const GroupSignature& group) {
    std::map<uint32_t, RefValue> values;
    for (const ValueId input : group.inputs) values[input.index] = ref_from_tensor(run_.value(input));
    for (const OpId id : group.ops) {
      const dag::Op& op = graph_.op(id);
      std::vector<const RefValue*> operands;
      for (const ValueId input : op.inputs)
        operands.push_back(input.valid() ? &values.at(input.index) : nullptr);
      std::vector<RefValue> results;
      for (const ValueId output : op.outputs) results.push_back({graph_.spec(output), {}, {}});
      WEFT_TRY_STATUS(run_reference_op(op, operands, results, kContext));
      for (size_t i = 0; i < results.size(); ++i)
        values[op.outputs[i].index] = ref_from_tensor(ref_to_tensor(results[i]));
    }
    std::map<uint32_t, Tensor> outputs;
    for (const ValueId output : group.outputs)
      outputs.emplace(output.index, ref_to_tensor(values.at(output.index)));
    return outputs;
  }

  // How much two arithmetics may differ: rounding, grown by the length of sums and the size of the terms.
  double allowance(const GroupSignature& group) {
    double largest = 1, longest = 1;
    for (const ValueId input : group.inputs) {
      if (!is_float(graph_.spec(input).dtype)) continue;
      double most = 1;
      for (const double value : dag::to_doubles(run_.value(input)))
        if (std::isfinite(value)) most = std::max(most, std::abs(value));
      largest *= most;
      longest = std::max(longest, static_cast<double>(graph_.spec(input).element_count()));
    }
    return 1e-6 * largest * std::sqrt(longest);
  }

 private:
  const Graph& graph_;
  GraphRun& run_;
};

// Whether one arithmetic may make NaN where the other does not: zeros that meet an operand's NaN or infinity,
// in a convolution's padding or a recurrent cell's first state, are multiplied by one and left out by the
// other.
bool zeros_meet_nan(const Graph& graph, const GroupSignature& group, GraphRun& run) {
  bool has_zeros = false, finite = true;
  for (const OpId id : group.ops)
    for (const dag::Family family : {dag::Family::Convolution, dag::Family::Recurrent})
      has_zeros = has_zeros || dag::op_table().row(graph.op(id).kind).family == family;
  for (const ValueId input : group.inputs)
    for (const double value : dag::to_doubles(run.value(input))) finite = finite && std::isfinite(value);
  return has_zeros && !finite;
}

// Elements further apart than rounding explains.
int64_t disagreements(const Tensor& actual, const Tensor& expected, double allowance, bool either_nan) {
  const std::vector<double> a = dag::to_doubles(actual), e = dag::to_doubles(expected);
  const double coarse = expected.dtype() == DType::F16 || expected.dtype() == DType::BF16 ? 0.01 : 1e-4;
  double largest = 0;
  for (const double value : e)
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  int64_t count = 0;
  for (size_t i = 0; i < e.size(); ++i) {
    if (std::isnan(e[i]) && std::isnan(a[i])) continue;
    if (either_nan && (std::isnan(e[i]) || std::isnan(a[i]))) continue;
    if (std::isinf(e[i]) && a[i] == e[i]) continue;
    if (!(std::abs(a[i] - e[i]) <= coarse * largest + allowance)) ++count;
  }
  return count;
}

std::string describe(const Graph& graph, const GroupSignature& group) {
  std::string text;
  for (const OpId id : group.ops) {
    const dag::Op& op = graph.op(id);
    text += std::string(to_string(op.kind)) + "(";
    for (const ValueId input : op.inputs)
      text += input.valid()
                  ? to_string(graph.spec(input)) + std::string(to_string(graph.value(input).layout)) + " "
                  : "- ";
    text += ") " + to_string(op.attributes) + "; ";
  }
  return text;
}

std::string start_of(const Tensor& tensor) {
  std::ostringstream text;
  const std::vector<double> values = dag::to_doubles(tensor);
  for (size_t i = 0; i < std::min<size_t>(values.size(), 8); ++i) text << values[i] << " ";
  return text.str();
}
std::string inputs_of(const GroupSignature& group, GraphRun& run) {
  std::string text;
  for (const ValueId input : group.inputs) text += "\n  of " + start_of(run.value(input));
  return text;
}

}  // namespace

void expect_kernels_agree(const Graph& graph, GraphRun& run) {
  ByReference reference(graph, run);
  for (const GroupSignature& group : group_signatures(graph)) {
    const auto expected = reference.group(group);
    ASSERT_TRUE(expected.has_value()) << expected.error().message;
    bool may_flip = false;
    if (group.ops.size() > 1)
      for (const OpId id : group.ops) may_flip = may_flip || jumps(graph.op(id).kind);
    const double allowance = reference.allowance(group);
    const bool either_nan = zeros_meet_nan(graph, group, run);
    for (const auto& [index, tensor] : *expected) {
      const int64_t count = disagreements(run.value(ValueId{index}), tensor, allowance, either_nan);
      EXPECT_LE(count, may_flip ? 1 + tensor.element_count() / 4 : 0)
          << "of " << tensor.element_count() << " elements, by " << run.implementation(group.ops.back())
          << ": " << describe(graph, group) << "\n  " << start_of(run.value(ValueId{index}))
          << "\n  expected " << start_of(tensor) << inputs_of(group, run);
    }
  }
}

std::vector<Tensor> leaves_of(const Graph& graph, const test::Model& model) {
  std::vector<Tensor> values;
  for (const ValueId input : graph.inputs()) values.push_back(model.inputs.at(graph.value(input).name));
  for (const auto& initializer : graph.initializers()) values.push_back(model.weights.at(initializer.name));
  return values;
}

}  // namespace weft::peer
