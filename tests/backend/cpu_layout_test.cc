// Values of every element size in every layout: stored, reordered, computed on, and refused where a shape has
// no such layout.
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
using dag::Shape;
using dag::Tensor;
using dag::ValueId;

constexpr Layout kLayouts[] = {Layout::Plain, Layout::Blocked8, Layout::Blocked16};
constexpr DType kDtypes[] = {DType::Bool, DType::F16, DType::F32, DType::I64};

Tensor random_of(DType dtype, const Shape& shape, uint64_t seed) {
  return dag::from_doubles({dtype, shape}, dag::to_doubles(random_tensor(shape, seed)));
}

// Distinct as far as the dtype can tell elements apart.
Tensor counted(DType dtype, const Shape& shape) {
  std::vector<double> values(static_cast<size_t>(dag::TensorSpec{dtype, shape}.element_count()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<double>(dtype == DType::Bool ? (i * 7 / 3) % 2 : i % 2048);
  return dag::from_doubles({dtype, shape}, values);
}

TEST(CpuLayout, WhatIsStoredInALayoutComesBackTheSame) {
  const auto backend = cpu();
  for (const DType dtype : kDtypes)
    for (const Layout layout : kLayouts)
      for (const Shape& shape : {Shape{2, 32, 5}, {3, 16, 4, 7}, {1, 48, 2, 3, 3}, {2, 16, 0}}) {
        const Tensor tensor = counted(dtype, shape);
        auto memory = backend->allocate(backend->storage_bytes(tensor.spec(), layout));
        ASSERT_TRUE(backend->upload(tensor, {memory->get(), 0}, layout).has_value());
        const auto back = backend->download({memory->get(), 0}, tensor.spec(), layout);
        EXPECT_TRUE(same_bytes(*back, tensor)) << to_string(tensor.spec()) << " " << to_string(layout);
      }
}

TEST(CpuLayout, ReordersBetweenAnyTwoLayouts) {
  const auto backend = cpu();
  for (const DType dtype : kDtypes)
    for (const Layout first : kLayouts)
      for (const Layout second : kLayouts)
        for (const Shape& shape : {Shape{2, 32, 35}, {3, 16, 4, 7}, {1, 48, 2, 3, 3}}) {
          GraphBuilder b(dag::op_table());
          ValueId x = b.input("x", {dtype, shape});
          for (const Layout layout : {first, second, Layout::Plain}) {
            x = b.add(OpKind::Reorder, {x}, {{Attr::Layout, static_cast<int64_t>(layout)}});
            b.set_layout(x, layout);
          }
          b.output("y", x, OutputRole::Prediction);
          const Tensor tensor = counted(dtype, shape);
          EXPECT_TRUE(same_bytes(outputs_of(*backend, b.finish(), {tensor})[0], tensor))
              << to_string(tensor.spec()) << " " << to_string(first) << " " << to_string(second);
        }
}

// The bytes themselves, which reorderings there and back would not show.
TEST(CpuLayout, ABlockHoldsItsChannelsSideBySide) {
  const auto backend = cpu();
  const Tensor x = counted(DType::Bool, {1, 16, 3});
  auto memory = backend->allocate(backend->storage_bytes(x.spec(), Layout::Blocked8));
  ASSERT_TRUE(backend->upload(x, {memory->get(), 0}, Layout::Blocked8).has_value());
  const auto flat = backend->download({memory->get(), 0}, {DType::Bool, {1, 2, 3, 8}}, Layout::Plain);
  for (size_t c = 0; c < 16; ++c)
    for (size_t s = 0; s < 3; ++s)
      EXPECT_EQ(flat->bytes()[(c / 8 * 3 + s) * 8 + c % 8], x.bytes()[c * 3 + s]) << c << " " << s;
}

// Convolution, BatchNorm and an activation whose gradient asks where it was cut off, as MobileNet has them.
Graph cut_off_activations(std::vector<Tensor>& inputs) {
  GraphBuilder b(dag::op_table());
  const auto parameter = [&](const std::string& name, Shape shape) {
    inputs.push_back(random_tensor(shape, 70 + inputs.size()));
    return b.initializer(name, {DType::F32, std::move(shape)}, dag::InitializerRole::Parameter);
  };
  const auto conv = [&](ValueId x, ValueId w, int64_t groups) {
    return b.add(OpKind::Conv, {x, w},
                 {{Attr::Strides, Ints{1, 1}},
                  {Attr::Pads, Ints{1, 1, 1, 1}},
                  {Attr::Dilations, Ints{1, 1}},
                  {Attr::Groups, groups}});
  };
  ValueId x = b.input("x", {DType::F32, {2, 3, 9, 9}});
  inputs.push_back(random_tensor({2, 3, 9, 9}, 69));
  x = conv(x, parameter("stem", {32, 3, 3, 3}), 1);
  x = b.add(OpKind::Clip, {x}, {{Attr::Min, 0.0}, {Attr::Max, 6.0}});
  x = conv(x, parameter("depthwise", {32, 1, 3, 3}), 32);
  // Booleans that leave their group: read plain by one reader and blocked by another.
  const ValueId zero = b.constant(random_tensor({}, 5));
  const ValueId above = b.add(OpKind::Greater, {x, zero});
  const ValueId half = b.add(OpKind::Where, {above, x, b.add(OpKind::Mul, {x, zero})});
  const ValueId flags =
      b.add(OpKind::Cast, {b.add(OpKind::Transpose, {above}, {{Attr::Perm, Ints{0, 2, 3, 1}}})},
            {{Attr::DType, static_cast<int64_t>(DType::F32)}});
  const ValueId back = b.add(OpKind::Transpose, {flags}, {{Attr::Perm, Ints{0, 3, 1, 2}}});
  x = b.add(OpKind::Mul, {b.add(OpKind::Clip, {half}, {{Attr::Min, -1.0}, {Attr::Max, 0.5}}), back});
  b.output("loss",
           b.add(OpKind::ReduceSum, {x}, {{Attr::Axes, Ints{0, 1, 2, 3}}, {Attr::KeepDims, int64_t{0}}}),
           OutputRole::Loss);
  b.output("above", above, OutputRole::Prediction);
  auto differentiated = dag::differentiate(b.finish(), dag::op_table());
  EXPECT_TRUE(differentiated.has_value()) << differentiated.error().message;
  return std::move(*differentiated);
}

TEST(CpuLayout, BooleansLieBlockedBesideTheNumbersTheyJudge) {
  std::vector<Tensor> inputs;
  const Graph graph = cut_off_activations(inputs);
  const auto expected = outputs_of(*make_reference_backend(), graph, inputs);
  const auto backend = cpu();
  for (const Layout layout : kLayouts)
    for (const bool fuse : {false, true}) {
      SCOPED_TRACE(std::string(to_string(layout)));
      const Graph lowered =
          dag::lower(graph, dag::op_table(), {.fuse_elementwise = fuse, .convolution_layout = layout});
      const auto actual = outputs_of(*backend, lowered, inputs);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_LE(relative_error(actual[i], expected[i]), 1e-5) << lowered.outputs()[i].name;
    }
}

// Channels cut and joined between blocks, as DenseNet and GoogLeNet have them.
Graph joined_channels(std::vector<Tensor>& inputs) {
  GraphBuilder b(dag::op_table());
  const auto parameter = [&](const std::string& name, Shape shape) {
    inputs.push_back(random_tensor(shape, 170 + inputs.size()));
    return b.initializer(name, {DType::F32, std::move(shape)}, dag::InitializerRole::Parameter);
  };
  const auto conv = [&](ValueId x, ValueId w) {
    return b.add(OpKind::Conv, {x, w},
                 {{Attr::Strides, Ints{1, 1}},
                  {Attr::Pads, Ints{1, 1, 1, 1}},
                  {Attr::Dilations, Ints{1, 1}},
                  {Attr::Groups, int64_t{1}}});
  };
  ValueId x = b.input("x", {DType::F32, {2, 3, 9, 7}});
  inputs.push_back(random_tensor({2, 3, 9, 7}, 169));
  x = b.add(OpKind::Relu, {conv(x, parameter("stem", {48, 3, 3, 3}))});
  const auto part = [&](int64_t start, int64_t size) {
    return b.add(OpKind::Slice, {x},
                 {{Attr::Starts, Ints{0, start, 0, 0}},
                  {Attr::Sizes, Ints{2, size, 9, 7}},
                  {Attr::Steps, Ints{1, 1, 1, 1}}});
  };
  const ValueId y = conv(part(0, 16), parameter("a", {16, 16, 3, 3}));
  x = b.add(OpKind::Concat, {part(16, 32), b.add(OpKind::Tanh, {y}), part(0, 16)},
            {{Attr::Axis, int64_t{1}}});
  x = b.add(OpKind::Tanh, {conv(x, parameter("b", {16, 64, 3, 3}))});
  b.output("loss",
           b.add(OpKind::ReduceSum, {x}, {{Attr::Axes, Ints{0, 1, 2, 3}}, {Attr::KeepDims, int64_t{0}}}),
           OutputRole::Loss);
  auto differentiated = dag::differentiate(b.finish(), dag::op_table());
  EXPECT_TRUE(differentiated.has_value()) << differentiated.error().message;
  return std::move(*differentiated);
}

TEST(CpuLayout, ChannelsAreCutAndJoinedBlockByBlock) {
  std::vector<Tensor> inputs;
  const Graph graph = joined_channels(inputs);
  const auto expected = outputs_of(*make_reference_backend(), graph, inputs);
  const auto backend = cpu();
  for (const Layout layout : {Layout::Blocked8, Layout::Blocked16}) {
    SCOPED_TRACE(std::string(to_string(layout)));
    const Graph lowered = dag::lower(graph, dag::op_table(), {.convolution_layout = layout});
    int blocked = 0;
    for (const dag::Op& op : lowered.ops()) {
      const bool moves =
          op.kind == OpKind::Slice || op.kind == OpKind::SliceGrad || op.kind == OpKind::Concat;
      blocked += moves && lowered.value(op.outputs[0]).layout == layout;
    }
    EXPECT_GE(blocked, 6);  // forward and back
    const auto actual = outputs_of(*backend, lowered, inputs);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_LE(relative_error(actual[i], expected[i]), 1e-5) << lowered.outputs()[i].name;
  }
}

// What no kernel of the backend's own takes goes by the reference, in any dtype and layout.
TEST(CpuLayout, TheFallbackTakesBlockedValuesOfEveryDtype) {
  const auto backend = cpu();
  for (const DType dtype : {DType::F16, DType::F64, DType::I32, DType::I64})
    for (const Shape& shape : {Shape{2, 16, 5}, {2, 16, 3, 3}, {1, 16, 2, 3, 2}, {0, 16, 3}}) {
      GraphBuilder b(dag::op_table());
      const ValueId x = b.input("x", {dtype, shape}), y = b.input("y", {dtype, shape});
      const ValueId z = b.add(OpKind::Mul, {x, y}), less = b.add(OpKind::Less, {x, y});
      for (const ValueId v : {x, z, less}) b.set_layout(v, Layout::Blocked16);
      b.output("z", z, OutputRole::Prediction);
      b.output("less", less, OutputRole::Prediction);
      const Graph graph = b.finish();
      const std::vector<Tensor> inputs{random_of(dtype, shape, 1), random_of(dtype, shape, 2)};
      const auto actual = outputs_of(*backend, graph, inputs),
                 expected = outputs_of(*make_reference_backend(), graph, inputs);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_LE(relative_error(actual[i], expected[i]), 1e-6) << dag::to_string({dtype, shape});
    }
}

TEST(CpuLayout, AShapeWithoutSuchALayoutIsRefusedByName) {
  const auto backend = cpu();
  for (const Shape& shape : {Shape{16}, {2, 16}, {2, 12, 3, 3}}) {
    GraphBuilder b(dag::op_table());
    const ValueId x = b.input("x", {DType::F32, shape});
    const ValueId y = b.add(OpKind::Exp, {x});
    b.set_layout(y, Layout::Blocked8);
    b.output("y", y, OutputRole::Prediction);
    const Graph graph = b.finish();
    const auto kernel = backend->make_kernel(graph, group_signatures(graph)[0]);
    ASSERT_FALSE(kernel.has_value());
    EXPECT_EQ(kernel.error().code, ErrorCode::Unsupported);
    EXPECT_NE(kernel.error().message.find("Exp"), std::string::npos) << kernel.error().message;
    EXPECT_NE(kernel.error().message.find(dag::to_string(shape)), std::string::npos);
    auto memory = backend->allocate({4096});
    const dag::TensorSpec spec{DType::F32, shape};
    EXPECT_FALSE(backend->upload(Tensor(spec), {memory->get(), 0}, Layout::Blocked8).has_value());
    EXPECT_FALSE(backend->download({memory->get(), 0}, spec, Layout::Blocked8).has_value());
  }
}

}  // namespace
}  // namespace weft::peer
