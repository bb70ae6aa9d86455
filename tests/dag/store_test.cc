// Weights that nobody trains, read as they are stored: the same numbers, forward and backward, as those of
// the graph that reads them in float32.
#include "dag/passes/store.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "dag/autodiff.h"
#include "tests/dag/run_graph.h"

namespace weft::dag {
namespace {

constexpr int64_t kRows = 6, kColumns = 4;

// x -> a table's rows, twice a product, and a use that no stored op has; "w" is frozen, "t" trained.
Graph model() {
  GraphBuilder b(op_table());
  const ValueId w = b.initializer("w", {DType::F32, {kRows, kColumns}}, InitializerRole::Frozen);
  const ValueId v = b.initializer("v", {DType::F32, {kRows, kColumns}}, InitializerRole::Frozen);
  const ValueId t = b.initializer("t", {DType::F32, {kColumns}}, InitializerRole::Parameter);
  const ValueId x = b.input("x", {DType::I64, {2, 3}});
  const ValueId rows = b.add(OpKind::Gather, {w, x}, {{Attr::Axis, int64_t{0}}});
  const ValueId scaled = b.add(OpKind::Mul, {rows, t});
  const ValueId up = b.add(OpKind::MatMul, {scaled, w}, {{Attr::TransB, int64_t{1}}});
  const ValueId down = b.add(OpKind::MatMul, {b.add(OpKind::Tanh, {up}), w});
  const ValueId other =
      b.add(OpKind::MatMul, {b.add(OpKind::Mul, {down, t}), v}, {{Attr::TransB, int64_t{1}}});
  const ValueId sum = b.add(OpKind::Add, {other, b.add(OpKind::ReduceSum, {v}, {{Attr::Axes, Ints{1}}})});
  b.output("loss", b.add(OpKind::ReduceSum, {b.add(OpKind::Mul, {sum, sum})}, {{Attr::Axes, Ints{0, 1, 2}}}),
           OutputRole::Loss);
  return b.finish();
}

struct Stored {
  StoredForm form;
  StoredTensors tensors;
};
Stored stored_at_random(const std::string& name, StoredMatrix matrix, uint64_t seed) {
  Rng rng(seed, /*stream=*/7);
  const auto drawn = [&](const TensorSpec& spec, double low, double high) {
    std::vector<double> values(static_cast<size_t>(spec.element_count()));
    for (double& value : values) value = low + (high - low) * rng.uniform();
    return from_doubles(spec, values);
  };
  const auto bytes = [&](const TensorSpec& spec) {
    Tensor tensor(spec);
    for (std::byte& byte : tensor.mutable_bytes()) byte = static_cast<std::byte>(rng.below(256));
    return tensor;
  };
  Stored stored{.form = {.matrix = matrix, .numbers = {name, matrix.numbers_spec()}}, .tensors = {}};
  if (matrix.is_half()) {
    stored.tensors.numbers = drawn(matrix.numbers_spec(), -1, 1);
    return stored;
  }
  stored.form.scale = {name + ".scale", matrix.scale_spec()};
  stored.tensors.numbers = bytes(matrix.numbers_spec());
  stored.tensors.scale = drawn(matrix.scale_spec(), 0.01, 0.1);
  if (matrix.has_zero) {
    stored.form.zero = {name + ".zero", matrix.zero_spec()};
    stored.tensors.zero = bytes(matrix.zero_spec());
  }
  return stored;
}

class Store : public testing::TestWithParam<StoredMatrix> {};

TEST_P(Store, ComputesAndLearnsAsFloat32) {
  const Graph plain = model();
  std::map<std::string, Stored> weights;
  StoredForms forms;
  Inputs inputs{{"x", {0, 5, 2, 2, 1, 3}}, {"t", {0.5, -1, 2, 1}}};
  for (const char* name : {"w", "v"}) {
    weights[name] = stored_at_random(name, GetParam(), name[0]);
    forms[name] = weights[name].form;
  }
  forms = worth_storing(plain, forms);
  EXPECT_EQ(forms.contains("v"), !GetParam().is_half()) << "a sum would widen the whole of it";
  ASSERT_TRUE(forms.contains("w"));
  const Graph graph = store(plain, forms, op_table());
  for (const auto& [name, one] : weights) {
    const Tensor wide = widened_rows(one.form.matrix, one.tensors, 0, kRows);
    inputs[name] = to_doubles(wide);
    if (!forms.contains(name)) continue;
    EXPECT_EQ(graph.spec(graph.find_initializer(name)->value).dtype, GetParam().numbers);
  }
  const auto as_float = differentiate(plain, op_table()), as_stored = differentiate(graph, op_table());
  ASSERT_TRUE(as_float.has_value() && as_stored.has_value());
  const std::vector<double> loss = run(*as_float, inputs, OutputRole::Loss);
  const std::vector<double> slopes = run(*as_float, inputs, OutputRole::Gradient, "t");
  for (const auto& [name, one] : weights) {
    if (!forms.contains(name)) continue;
    inputs[name] = to_doubles(one.tensors.numbers);
    if (!one.form.scale.name.empty()) inputs[one.form.scale.name] = to_doubles(one.tensors.scale);
    if (!one.form.zero.name.empty()) inputs[one.form.zero.name] = to_doubles(one.tensors.zero);
  }
  EXPECT_EQ(run(*as_stored, inputs, OutputRole::Loss), loss);
  EXPECT_EQ(run(*as_stored, inputs, OutputRole::Gradient, "t"), slopes);
  EXPECT_TRUE(std::isfinite(loss.at(0)) && loss.at(0) != 0);
}

StoredMatrix matrix_of(DType numbers, int64_t bits, int64_t block_rows = 1, int64_t block_columns = 1) {
  StoredMatrix matrix{.rows = kRows, .columns = kColumns, .numbers = numbers, .bits = bits};
  matrix.block_rows = block_rows, matrix.block_columns = block_columns;
  matrix.has_zero = numbers == DType::U8;
  return matrix;
}
INSTANTIATE_TEST_SUITE_P(Forms, Store,
                         testing::Values(matrix_of(DType::F16, 16), matrix_of(DType::BF16, 16),
                                         matrix_of(DType::I8, 8, 4), matrix_of(DType::U8, 8, 1, 3),
                                         matrix_of(DType::I8, 4, 6, 1), matrix_of(DType::U8, 4, 2, 1)));

TEST(StoreForms, OnlyWhatNobodyTrainsIsStored) {
  GraphBuilder b(op_table());
  const ValueId w = b.initializer("w", {DType::F32, {3, 3}}, InitializerRole::Parameter);
  const ValueId x = b.input("x", {DType::F32, {2, 3}});
  b.output("y", b.add(OpKind::MatMul, {x, w}), OutputRole::Prediction);
  const Graph graph = b.finish();
  StoredForms forms;
  forms["w"] = {.matrix = {.rows = 3, .columns = 3}, .numbers = {"w", {DType::F16, {3, 3}}}};
  EXPECT_TRUE(worth_storing(graph, forms).empty());
}

}  // namespace
}  // namespace weft::dag
