// Convolutions over random shapes, strides, dilations, groups and layouts: oneDNN's and the backend's own, in
// all three directions, against the reference and against themselves with other numbers of threads.
#include "peer/backend/reference/reference_backend.h"
#include "tests/backend/cpu.h"
#include "tests/backend/run_graph.h"

namespace weft::peer {
namespace {

using dag::Attr;
using dag::Attributes;
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

struct Convolution {
  Shape x, w, y;
  Attributes attributes;
  bool bias = false;
  std::string text() const {
    return "x " + dag::to_string(x) + " w " + dag::to_string(w) + " groups " +
           std::to_string(attributes.get_int(Attr::Groups)) + " strides " +
           dag::to_string(attributes.get_ints(Attr::Strides)) + " pads " +
           dag::to_string(attributes.get_ints(Attr::Pads)) + " dilations " +
           dag::to_string(attributes.get_ints(Attr::Dilations)) + (bias ? " bias" : "");
  }
};

// Channels: any; whole blocks; one a group.
Convolution random_convolution(Rng& rng) {
  Convolution c;
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(rng.below(n)); };
  const int64_t dims = 1 + below(3);
  int64_t groups = 1, channels = 1 + below(40), filters = 1 + below(40);
  switch (below(4)) {
    case 0:
      groups = 1 + below(70), channels = filters = 1;  // each by itself
      break;
    case 1:
      groups = 1 + below(12), channels = 1 + below(9), filters = 1 + below(9);
      break;
    case 2:
      channels = 16 * (1 + below(3)), filters = 16 * (1 + below(3));
      groups = below(2) == 0 ? 1 : 2;
      break;
    default:
      break;
  }
  Ints strides, pads, ends, dilations;
  c.x = {1 + below(3), groups * channels};
  c.w = {groups * filters, channels};
  c.y = {c.x[0], c.w[0]};
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t kernel = 1 + below(dims == 1 ? 9 : 4), dilation = 1 + below(2), stride = 1 + below(3);
    const int64_t pad = below(kernel + 1), end = below(kernel + 1), extent = dilation * (kernel - 1) + 1;
    const int64_t size = std::max<int64_t>(1, extent - pad - end) + below(dims == 1   ? 600
                                                                          : dims == 2 ? 24
                                                                                      : 7);
    strides.push_back(stride), pads.push_back(pad), ends.push_back(end), dilations.push_back(dilation);
    c.x.push_back(size);
    c.w.push_back(kernel);
    c.y.push_back((size + pad + end - extent) / stride + 1);
  }
  pads.insert(pads.end(), ends.begin(), ends.end());
  c.attributes = {
      {Attr::Strides, strides}, {Attr::Pads, pads}, {Attr::Dilations, dilations}, {Attr::Groups, groups}};
  c.bias = below(2) == 0;
  return c;
}

struct Direction {
  OpKind kind;
  std::vector<Shape> operands;
  Shape result;
};
std::vector<Direction> directions(const Convolution& c) {
  std::vector<Direction> list{{OpKind::Conv, {c.x, c.w}, c.y},
                              {OpKind::ConvGradInput, {c.y, c.w}, c.x},
                              {OpKind::ConvGradWeight, {c.x, c.y}, c.w}};
  if (c.bias) list[0].operands.push_back({c.w[0]});
  return list;
}

// One op; x and y lie in `layout` where they can, each by the toss of a coin.
Graph graph_of(const Convolution& c, const Direction& direction, Layout layout, Rng& rng) {
  GraphBuilder b(dag::op_table());
  std::vector<ValueId> operands;
  for (size_t i = 0; i < direction.operands.size(); ++i)
    operands.push_back(b.input("x" + std::to_string(i), {DType::F32, direction.operands[i]}));
  Attributes attributes = c.attributes;
  if (direction.kind != OpKind::Conv) attributes.set(Attr::Shape, direction.result);
  const ValueId result = b.add(direction.kind, operands, attributes);
  b.output("result", result, OutputRole::Prediction);
  operands.push_back(result);
  const int64_t block = layout == Layout::Blocked8 ? 8 : 16;
  for (const ValueId v : operands) {
    const Shape& shape = b.spec(v).shape;
    const bool image = shape == c.x || shape == c.y;
    if (layout != Layout::Plain && image && shape.size() >= 3 && shape[1] % block == 0 && rng.below(4) > 0)
      b.set_layout(v, layout);
  }
  return b.finish();
}

Tensor result_of(Backend& backend, const Graph& graph, const std::vector<Tensor>& inputs,
                 std::string* implementation = nullptr) {
  GraphRun run(backend, graph);
  run.run(inputs);
  const ValueId value = graph.outputs()[0].value;
  if (implementation != nullptr) *implementation = run.implementation(graph.value(value).producer);
  return run.value(value);
}

void expect_right(uint64_t seed, bool own) {
  Rng rng(seed, 3);
  const Convolution c = random_convolution(rng);
  const auto reference = make_reference_backend();
  for (const Direction& direction : directions(c)) {
    const Layout layout = static_cast<Layout>(rng.below(3));
    const Graph graph = graph_of(c, direction, layout, rng);
    SCOPED_TRACE("seed " + std::to_string(seed) + " " + std::string(to_string(direction.kind)) + " " +
                 c.text() + " " + std::string(to_string(layout)));
    std::vector<Tensor> inputs;
    for (const Shape& shape : direction.operands)
      inputs.push_back(random_tensor(shape, seed + inputs.size()));
    const Tensor expected = result_of(*reference, graph, inputs);
    std::string implementation;
    const Tensor actual = result_of(*cpu(2, own), graph, inputs, &implementation);
    EXPECT_LE(relative_error(actual, expected), 2e-5) << implementation;
    EXPECT_NE(implementation, "reference");
    EXPECT_EQ(implementation.find(" ref"), std::string::npos) << implementation;
    EXPECT_TRUE(!own || implementation.starts_with("own conv")) << implementation;
    for (const int threads : {1, 3})
      EXPECT_TRUE(same_bytes(result_of(*cpu(threads, own), graph, inputs), actual)) << threads << " threads";
  }
}

TEST(CpuConvolution, OfOurOwnAgreesWithTheReferenceForAnyNumberOfThreads) {
  for (uint64_t seed = 1; seed <= 100; ++seed) expect_right(seed, /*own=*/true);
}

TEST(CpuConvolution, WhateverIsChosenAgreesWithTheReferenceForAnyNumberOfThreads) {
  for (uint64_t seed = 1001; seed <= 1060; ++seed) expect_right(seed, /*own=*/false);
}

// Enough positions, channels and samples that every way of cutting into pieces occurs.
TEST(CpuConvolution, OfOurOwnIsCutIntoPiecesWithoutSeams) {
  const auto reference = make_reference_backend();
  const auto conv = [](Shape x, Shape w, int64_t groups, int64_t stride, int64_t pad) {
    Convolution c{std::move(x), std::move(w), {}, {}, true};
    c.y = {c.x[0], c.w[0]};
    for (size_t d = 2; d < 4; ++d) c.y.push_back((c.x[d] + 2 * pad - c.w[d]) / stride + 1);
    c.attributes = {{Attr::Strides, Ints{stride, stride}},
                    {Attr::Pads, Ints{pad, pad, pad, pad}},
                    {Attr::Dilations, Ints{1, 1}},
                    {Attr::Groups, groups}};
    return c;
  };
  Rng rng(9, 9);
  uint64_t seed = 500;
  for (const Convolution& c :
       {conv({2, 3, 64, 64}, {16, 3, 16, 16}, 1, 16, 0), conv({3, 1, 28, 28}, {16, 1, 3, 3}, 1, 1, 1),
        conv({1, 24, 40, 40}, {24, 8, 3, 3}, 3, 1, 1), conv({2, 70, 17, 17}, {400, 70, 1, 1}, 1, 1, 0),
        conv({1, 2, 64, 64}, {2, 2, 24, 24}, 1, 3, 4), conv({2, 40, 30, 30}, {40, 1, 5, 5}, 40, 2, 2)}) {
    for (const Direction& direction : directions(c)) {
      SCOPED_TRACE(std::string(to_string(direction.kind)) + " " + c.text());
      const Graph graph = graph_of(c, direction, Layout::Plain, rng);
      std::vector<Tensor> inputs;
      for (const Shape& shape : direction.operands) inputs.push_back(random_tensor(shape, ++seed));
      const Tensor actual = result_of(*cpu(2, true), graph, inputs);
      EXPECT_LE(relative_error(actual, result_of(*reference, graph, inputs)), 2e-5);
      EXPECT_TRUE(same_bytes(result_of(*cpu(3, true), graph, inputs), actual));
    }
  }
}

// What one can write into a model file and no library counts with.
TEST(CpuConvolution, ExtremeWindowsAreComputedAndNotHandedToOneDnn) {
  Convolution c{{1, 8, 4, 4}, {8, 8, 2, 2}, {1, 8, 2, 2}, {}, false};
  const int64_t most = int64_t{1} << 20;
  c.attributes = {{Attr::Strides, Ints{most, most}},
                  {Attr::Pads, Ints{most, most, most, most}},
                  {Attr::Dilations, Ints{most, most}},
                  {Attr::Groups, int64_t{1}}};
  for (size_t d = 2; d < 4; ++d) c.y[d] = (c.x[d] + 2 * most - (most + 1)) / most + 1;
  Rng rng(1, 1);
  const auto reference = make_reference_backend();
  for (const Direction& direction : directions(c)) {
    const Graph graph = graph_of(c, direction, Layout::Plain, rng);
    std::vector<Tensor> inputs;
    for (const Shape& shape : direction.operands) inputs.push_back(random_tensor(shape, inputs.size() + 1));
    const Tensor actual = result_of(*cpu(2, false), graph, inputs);
    EXPECT_LE(relative_error(actual, result_of(*reference, graph, inputs)), 2e-5)
        << to_string(direction.kind);
  }
}

}  // namespace
}  // namespace weft::peer
