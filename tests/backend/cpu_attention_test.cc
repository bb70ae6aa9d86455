// Attention by blocks of queries has the bits of the ops that it stands for, one after the other.
#include <gtest/gtest.h>

#include <cstring>

#include "dag/autodiff.h"
#include "dag/passes/attention.h"
#include "tests/backend/cpu.h"
#include "tests/backend/run_graph.h"

namespace weft::peer {
namespace {

using dag::Attr;
using dag::OpKind;
using dag::Shape;
using dag::Tensor;
using dag::ValueId;

struct Case {
  int64_t heads, queries, keys, inner, columns;
  bool trans_b, scales, adds, masks;
};

dag::Graph written_out(const Case& c) {
  dag::GraphBuilder b(dag::op_table());
  const auto parameter = [&](const char* name, Shape shape) {
    return b.initializer(name, {dag::DType::F32, std::move(shape)}, dag::InitializerRole::Parameter);
  };
  const ValueId q = parameter("q", {c.heads, c.queries, c.inner});
  const ValueId k =
      parameter("k", c.trans_b ? Shape{c.heads, c.keys, c.inner} : Shape{c.heads, c.inner, c.keys});
  const ValueId v = parameter("v", {c.heads, c.keys, c.columns});
  ValueId s = b.add(OpKind::MatMul, {q, k}, {{Attr::TransB, int64_t{c.trans_b}}});
  if (c.scales) s = b.add(OpKind::Mul, {s, b.scalar(dag::DType::F32, 0.3)});
  if (c.adds) s = b.add(OpKind::Add, {s, b.input("bias", {dag::DType::F32, {c.queries, c.keys}})});
  if (c.masks)
    s = b.add(OpKind::Where, {b.input("keep", {dag::DType::Bool, {c.heads, 1, c.keys}}), s,
                              b.scalar(dag::DType::F32, -1e9)});
  const ValueId p = b.add(OpKind::Softmax, {s}, {{Attr::Axis, int64_t{2}}});
  const ValueId y = b.add(OpKind::MatMul, {p, v});
  b.output("y", y, dag::OutputRole::Prediction);
  const ValueId seed = b.input("dy", b.spec(y));
  b.output("loss",
           b.add(OpKind::ReduceSum, {b.add(OpKind::Mul, {y, seed})}, {{Attr::Axes, dag::Ints{0, 1, 2}}}),
           dag::OutputRole::Loss);
  return b.finish();
}

std::map<std::string, Tensor> results(Backend& backend, const dag::Graph& forward) {
  const dag::Graph graph = *dag::differentiate(forward, dag::op_table());
  std::vector<Tensor> values;
  const auto add = [&](ValueId value) {
    const dag::TensorSpec& spec = graph.spec(value);
    const uint64_t seed = std::hash<std::string>{}(graph.value(value).name);
    if (spec.dtype == dag::DType::Bool) {
      Tensor keep(spec);
      for (size_t i = 0; i < keep.mutable_bytes().size(); ++i)
        keep.mutable_bytes()[i] = std::byte(i % 3 != 1);
      values.push_back(std::move(keep));
    } else {
      values.push_back(random_tensor(spec.shape, seed));
    }
  };
  for (const ValueId input : graph.inputs()) add(input);
  for (const dag::Initializer& initializer : graph.initializers()) add(initializer.value);
  GraphRun run(backend, graph);
  run.run(values);
  std::map<std::string, Tensor> found;
  for (const auto& output : graph.outputs()) found[output.name] = run.value(output.value);
  return found;
}

TEST(CpuAttention, HasTheBitsOfItsOps) {
  const Case cases[] = {
      {3, 5, 7, 8, 4, true, true, true, true},        {1, 70, 300, 16, 16, false, true, false, false},
      {2, 300, 300, 32, 32, true, true, true, false}, {4, 257, 513, 8, 24, false, false, true, true},
      {1, 520, 65, 64, 64, true, false, false, true}, {2, 1, 600, 16, 16, true, true, true, true}};
  for (const int threads : {1, 3}) {
    const auto backend = cpu(threads);
    for (const Case& c : cases) {
      SCOPED_TRACE(std::to_string(c.queries) + " queries, " + std::to_string(c.keys) + " keys");
      const dag::Graph written = written_out(c), fused = dag::fuse_attention(written, {}, 0, dag::op_table());
      ASSERT_LT(fused.ops().size(), written.ops().size());
      const auto want = results(*backend, written), have = results(*backend, fused);
      ASSERT_EQ(want.size(), have.size());
      for (const auto& [name, tensor] : want) {
        const std::span<const float> a = tensor.as<float>(), b = have.at(name).as<float>();
        ASSERT_EQ(a.size(), b.size());
        for (size_t i = 0; i < a.size(); ++i)
          ASSERT_EQ(std::memcmp(&a[i], &b[i], sizeof(float)), 0)
              << name << " " << i << ": " << a[i] << " and " << b[i];
      }
    }
  }
}

}  // namespace
}  // namespace weft::peer
