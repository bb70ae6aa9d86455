// Ops put together at random, as a hostile model might: a shape rule either refuses or gives specs that the
// reference kernels then run over without touching what is not theirs (sanitizers watch).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "dag/op_table.h"
#include "peer/backend/reference/kernels.h"
#include "peer/backend/reference/reference_kernels.h"
#include "tests/dag/op_cases.h"

namespace weft::dag {
namespace {

constexpr int64_t kOdd[] = {0,
                            1,
                            2,
                            3,
                            4,
                            5,
                            -1,
                            -2,
                            -5,
                            7,
                            100,
                            1 << 20,
                            int64_t{1} << 39,
                            int64_t{1} << 62,
                            std::numeric_limits<int64_t>::max(),
                            std::numeric_limits<int64_t>::min()};

int64_t odd_number(Rng& rng) { return kOdd[rng.below(rng.below(3) == 0 ? std::size(kOdd) : 6)]; }

// A case with some of its attributes and operand shapes replaced by others.
struct Mutant {
  Attributes attributes;
  std::vector<std::optional<TensorSpec>> inputs;
};
Mutant mutate(const OpCase& op_case, Rng& rng) {
  Mutant mutant;
  for (const auto& [name, value] : op_case.attributes.entries()) {
    AttrValue changed = value;
    if (auto* number = std::get_if<int64_t>(&changed); number && rng.below(3) == 0) *number = odd_number(rng);
    if (auto* ints = std::get_if<Ints>(&changed)) {
      for (int64_t& entry : *ints)
        if (rng.below(4) == 0) entry = odd_number(rng);
      if (rng.below(8) == 0) ints->push_back(odd_number(rng));
      if (rng.below(8) == 0 && !ints->empty()) ints->pop_back();
    }
    if (rng.below(16) != 0) mutant.attributes.set(name, changed);
  }
  for (const auto& input : op_case.inputs) {
    if (!input) {
      mutant.inputs.push_back(std::nullopt);
      continue;
    }
    TensorSpec spec = input->spec();
    for (int64_t& dim : spec.shape)
      if (rng.below(6) == 0) dim = std::abs(odd_number(rng) % 6);
    if (rng.below(12) == 0) spec.shape.push_back(static_cast<int64_t>(rng.below(4)));
    if (rng.below(12) == 0 && !spec.shape.empty()) spec.shape.pop_back();
    if (rng.below(12) == 0)
      spec.dtype = static_cast<DType>(rng.below(static_cast<uint64_t>(DType::Bool) + 1));
    mutant.inputs.push_back(spec);
  }
  return mutant;
}

peer::RefValue random_value(const TensorSpec& spec, Rng& rng) {
  peer::RefValue value{spec, {}, {}};
  const auto count = static_cast<size_t>(spec.element_count());
  for (size_t i = 0; i < count; ++i) {
    if (value.is_real())
      value.reals.push_back(rng.below(8) == 0 ? std::nan("") : rng.normal());
    else
      value.wholes.push_back(spec.dtype == DType::Bool
                                 ? static_cast<int64_t>(rng.below(2))
                                 : peer::reference::wrapped(spec.dtype, odd_number(rng)));
  }
  return value;
}

// Whether the shape rule took it.
bool run_mutant(const OpCase& op_case, Rng& rng) {
  const Mutant mutant = mutate(op_case, rng);
  GraphBuilder builder(op_table());
  std::vector<ValueId> operands;
  for (size_t i = 0; i < mutant.inputs.size(); ++i)
    operands.push_back(mutant.inputs[i] ? builder.input("x" + std::to_string(i), *mutant.inputs[i])
                                        : ValueId{});
  const auto outputs = builder.try_add(op_case.kind, operands, mutant.attributes);
  if (!outputs) return false;
  const Graph& graph = builder.graph();
  const Op& op = graph.ops().back();
  std::vector<peer::RefValue> values, results;
  std::vector<const peer::RefValue*> inputs;
  values.reserve(operands.size());
  int64_t largest = std::min<int64_t>(op_flops(graph, op).value, peer::kFoldFlopsMax);
  for (const ValueId operand : operands) {
    values.push_back(operand.valid() ? random_value(graph.spec(operand), rng) : peer::RefValue{});
    inputs.push_back(operand.valid() ? &values.back() : nullptr);
  }
  for (const ValueId output : *outputs) {
    results.push_back({graph.spec(output), {}, {}});
    largest = std::max(largest, graph.spec(output).element_count());
  }
  if (largest <= 1 << 20) {
    EXPECT_TRUE(peer::run_reference_op(op, inputs, results, {}).has_value());
  }

  const OpRow& row = op_table().row(op.kind);
  if (row.vjp != nullptr && is_float(graph.spec(op.outputs[0]).dtype)) {
    const Op copy = op;
    std::vector<ValueId> cotangents(copy.outputs.size());
    cotangents[0] = builder.input("cotangent", TensorSpec(graph.spec(copy.outputs[0])));
    VjpContext context(builder, copy, cotangents);
    row.vjp(context);  // builds only ops that their shape rules take, or the process stops
  }
  return true;
}

TEST(OpHostile, RandomAttributesAndShapesAreRefusedOrRun) {
  size_t taken = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0xBAD);
    for (const OpCase& op_case : all_op_cases(seed)) {
      SCOPED_TRACE(op_case.name);
      for (int i = 0; i < 6; ++i) ++(run_mutant(op_case, rng) ? taken : refused);
    }
  }
  EXPECT_GT(taken, 5000u);
  EXPECT_GT(refused, 5000u);
}

}  // namespace
}  // namespace weft::dag
