// Groups of ops and blocked layouts: the same bits as op by op, and the same values as plain.
#include "dag/autodiff.h"
#include "dag/lower.h"
#include "peer/backend/reference/reference_backend.h"
#include "tests/backend/cpu.h"
#include "tests/backend/run_graph.h"

namespace weft::peer {
namespace {

using dag::Attr;
using dag::DType;
using dag::Graph;
using dag::GraphBuilder;
using dag::Ints;
using dag::Layout;
using dag::OpKind;
using dag::OutputRole;
using dag::Tensor;
using dag::ValueId;

constexpr StepContext kContext{.seed = 1, .step = 1, .sample_position = 0, .microbatch_size = 2};

// A random tangle of elementwise ops over operands that are whole, stretched, or single numbers.
Graph random_elementwise(uint64_t seed, bool in_one_group, std::vector<Tensor>& inputs) {
  Rng rng(seed, 1);
  GraphBuilder builder(dag::op_table());
  const dag::Shape shape{2, 3 + static_cast<int64_t>(rng.below(40)), 1 + static_cast<int64_t>(rng.below(90))};
  std::vector<dag::Shape> shapes{shape, shape, {shape[2]}, {shape[1], 1}, {}, {2, 1, shape[2]}};
  std::vector<ValueId> floats, bools;
  inputs.clear();
  for (size_t i = 0; i < shapes.size(); ++i) {
    floats.push_back(builder.input("x" + std::to_string(i), {DType::F32, shapes[i]}));
    inputs.push_back(random_tensor(shapes[i], seed * 10 + i));
  }
  std::vector<ValueId> made{builder.add(OpKind::Add, {floats[0], floats[2]})};
  std::vector<dag::OpId> ops{builder.graph().value(made[0]).producer};
  const OpKind unary[] = {OpKind::Relu, OpKind::Tanh, OpKind::Sigmoid, OpKind::Neg,
                          OpKind::Gelu, OpKind::Exp,  OpKind::Dropout};
  const OpKind binary[] = {OpKind::Add, OpKind::Sub,      OpKind::Mul,
                           OpKind::Max, OpKind::TanhGrad, OpKind::ReluGrad};
  for (int i = 0; i < 18; ++i) {
    const ValueId a = made[rng.below(made.size())];
    const ValueId b = rng.below(2) == 0 ? made[rng.below(made.size())] : floats[rng.below(floats.size())];
    ValueId next;
    switch (rng.below(4)) {
      case 0: {
        const OpKind kind = unary[rng.below(std::size(unary))];
        next = builder.add(kind, {a},
                           kind == OpKind::Dropout
                               ? dag::Attributes{{Attr::Ratio, 0.25}, {Attr::Key, int64_t{i}}}
                               : dag::Attributes{});
        break;
      }
      case 1: {
        const OpKind kind = binary[rng.below(std::size(binary))];
        const bool gradient = kind == OpKind::TanhGrad || kind == OpKind::ReluGrad;
        next = builder.add(kind, {a, gradient ? made[rng.below(made.size())] : b});
        break;
      }
      case 2: {
        const ValueId condition = builder.add(OpKind::Less, {a, b});
        ops.push_back(builder.graph().value(condition).producer);
        next = builder.add(OpKind::Where, {condition, b, a});
        break;
      }
      default: {
        const ValueId flag = builder.add(OpKind::GreaterEqual, {b, a});
        ops.push_back(builder.graph().value(flag).producer);
        next = builder.add(OpKind::Cast, {flag}, {{Attr::DType, static_cast<int64_t>(DType::F32)}});
      }
    }
    ops.push_back(builder.graph().value(next).producer);
    made.push_back(next);
  }
  for (const dag::OpId op : ops)
    if (in_one_group) builder.set_group(op, dag::GroupId{0});
  builder.output("last", made.back(), OutputRole::Prediction);
  builder.output("middle", made[made.size() / 2], OutputRole::Prediction);
  return builder.finish();
}

TEST(CpuFused, AGroupGivesTheBitsOfItsOpsOneByOne) {
  const auto backend = cpu(2);
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<Tensor> inputs;
    const Graph apart = random_elementwise(seed, /*in_one_group=*/false, inputs);
    const Graph fused = random_elementwise(seed, /*in_one_group=*/true, inputs);
    EXPECT_EQ(group_signatures(fused).size(), 1u);
    const auto expected = outputs_of(*backend, apart, inputs, kContext),
               actual = outputs_of(*backend, fused, inputs, kContext);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(same_bytes(actual[i], expected[i])) << "output " << i;
  }
}

TEST(CpuFused, TakingOverAnInputsBufferChangesNothing) {
  const auto backend = cpu(2);
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<Tensor> inputs;
    const Graph graph = random_elementwise(seed, /*in_one_group=*/true, inputs);
    const auto expected = outputs_of(*backend, graph, inputs, kContext);
    const GroupSignature group = group_signatures(graph)[0];
    auto kernel = backend->make_kernel(graph, group);
    ASSERT_TRUE(kernel.has_value());
    std::vector<std::unique_ptr<Memory>> memory;
    std::vector<View> in, out;
    for (const ValueId value : group.inputs) {
      const auto& names = graph.inputs();
      const size_t which = static_cast<size_t>(std::find(names.begin(), names.end(), value) - names.begin());
      memory.push_back(std::move(*backend->allocate(inputs[which].spec().bytes())));
      in.push_back({memory.back().get(), 0});
      ASSERT_TRUE(backend->upload(inputs[which], in.back(), Layout::Plain).has_value());
    }
    for (size_t i = 0; i < group.outputs.size(); ++i) {
      const int input = (*kernel)->in_place_input(i);
      memory.push_back(std::move(*backend->allocate(graph.spec(group.outputs[i]).bytes())));
      out.push_back(input >= 0 ? in[static_cast<size_t>(input)] : View{memory.back().get(), 0});
    }
    ASSERT_TRUE((*kernel)
                    ->run(in, out, {}, {.seed = 1, .step = 1, .sample_position = 0, .microbatch_size = 2})
                    .has_value());
    for (size_t i = 0; i < graph.outputs().size(); ++i) {
      const ValueId value = graph.outputs()[i].value;
      const size_t at = static_cast<size_t>(std::find(group.outputs.begin(), group.outputs.end(), value) -
                                            group.outputs.begin());
      const auto actual = backend->download(out[at], graph.spec(value), Layout::Plain);
      EXPECT_TRUE(same_bytes(*actual, expected[i])) << "output " << i;
    }
  }
}

// Residual blocks with pooling, and the gradient with respect to everything, the image too.
Graph small_residual_network(std::vector<Tensor>& inputs) {
  GraphBuilder b(dag::op_table());
  uint64_t seed = 50;
  const auto parameter = [&](const std::string& name, dag::Shape shape) {
    inputs.push_back(random_tensor(shape, ++seed));
    return b.initializer(name, {DType::F32, std::move(shape)}, dag::InitializerRole::Parameter);
  };
  const auto conv = [&](ValueId x, ValueId w, int64_t stride, int64_t pad) {
    return b.add(OpKind::Conv, {x, w},
                 {{Attr::Strides, Ints{stride, stride}},
                  {Attr::Pads, Ints{pad, pad, pad, pad}},
                  {Attr::Dilations, Ints{1, 1}},
                  {Attr::Groups, int64_t{1}}});
  };
  const auto norm = [&](ValueId x, int64_t channels, const std::string& name) {
    return b.add(OpKind::BatchNorm,
                 {x, parameter(name + ".scale", {channels}), parameter(name + ".bias", {channels})},
                 {{Attr::Epsilon, 1e-5}});
  };
  ValueId x = parameter("x", {3, 3, 33, 33});
  x = b.add(OpKind::Relu, {norm(conv(x, parameter("stem", {32, 3, 7, 7}), 2, 3), 32, "n0")});
  x = b.add_all(OpKind::MaxPool, {x},
                {{Attr::Kernel, Ints{3, 3}}, {Attr::Strides, Ints{2, 2}}, {Attr::Pads, Ints{1, 1, 1, 1}}})[0];
  ValueId y = b.add(OpKind::Relu, {norm(conv(x, parameter("a", {32, 32, 3, 3}), 1, 1), 32, "n1")});
  y = norm(conv(y, parameter("b", {32, 32, 3, 3}), 1, 1), 32, "n2");
  x = b.add(OpKind::Relu, {b.add(OpKind::Add, {x, y})});
  y = norm(conv(x, parameter("c", {64, 32, 3, 3}), 2, 1), 64, "n3");
  x = b.add(OpKind::Relu, {b.add(OpKind::Add, {y, conv(x, parameter("d", {64, 32, 1, 1}), 2, 0)})});
  x = b.add(OpKind::AveragePool, {x},
            {{Attr::Kernel, Ints{2, 2}}, {Attr::Strides, Ints{1, 1}}, {Attr::Pads, Ints{0, 0, 0, 0}}});
  x = b.add(OpKind::ReduceMean, {x}, {{Attr::Axes, Ints{2, 3}}, {Attr::KeepDims, int64_t{1}}});
  // Weighed by place: a plain sum of normalised values would have gradients of zero.
  const ValueId weighed = b.add(OpKind::Mul, {x, b.constant(random_tensor({3, 64, 1, 1}, 99))});
  b.output(
      "loss",
      b.add(OpKind::ReduceSum, {weighed}, {{Attr::Axes, Ints{0, 1, 2, 3}}, {Attr::KeepDims, int64_t{0}}}),
      OutputRole::Loss);
  auto differentiated = dag::differentiate(b.finish(), dag::op_table());
  EXPECT_TRUE(differentiated.has_value()) << differentiated.error().message;
  return std::move(*differentiated);
}

TEST(CpuLayouts, ABlockedNetworkComputesWhatThePlainOneDoes) {
  std::vector<Tensor> inputs;
  const Graph graph = small_residual_network(inputs);
  const auto reference = make_reference_backend();
  const auto expected = outputs_of(*reference, graph, inputs, kContext);
  const auto backend = cpu(2), one = cpu(1), three = cpu(3);
  for (const Layout layout : {Layout::Plain, Layout::Blocked8, Layout::Blocked16}) {
    SCOPED_TRACE(std::string(to_string(layout)));
    const Graph lowered =
        dag::lower(graph, dag::op_table(), {.fuse_elementwise = true, .convolution_layout = layout});
    const auto actual = outputs_of(*backend, lowered, inputs, kContext);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_LE(relative_error(actual[i], expected[i]), 1e-4) << lowered.outputs()[i].name;
    const auto alone = outputs_of(*one, lowered, inputs, kContext),
               others = outputs_of(*three, lowered, inputs, kContext);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(same_bytes(alone[i], actual[i]));
      EXPECT_TRUE(same_bytes(others[i], actual[i]));
    }
  }
}

}  // namespace
}  // namespace weft::peer
