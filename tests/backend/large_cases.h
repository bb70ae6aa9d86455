// Op cases beyond tests/dag/op_cases.h, of shapes large enough to be cut into pieces, and how a backend runs
// a case: for every backend's comparison with the reference.
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/backend/run_graph.h"
#include "tests/dag/op_cases.h"

namespace weft::peer {

using dag::Attr;
using dag::Attributes;
using dag::DType;
using dag::Ints;
using dag::OpCase;
using dag::OpKind;
using dag::Shape;
using dag::Tensor;

inline const StepContext kContext{.seed = 7, .step = 3, .sample_position = 2, .microbatch_size = 1};

inline std::vector<Tensor> run_case(Backend& backend, const OpCase& op_case,
                                    std::string* implementation = nullptr, const Precision& precision = {}) {
  dag::OpCaseGraph made = dag::build_op_case(op_case);
  const dag::Graph& graph = made.builder.graph();
  GraphRun run(backend, graph);
  std::vector<Tensor> inputs;
  for (const auto& input : op_case.inputs)
    if (input) inputs.push_back(*input);
  run.run(inputs, kContext, precision);
  std::vector<Tensor> results;
  for (const dag::ValueId output : made.outputs) results.push_back(run.value(output));
  if (implementation != nullptr) *implementation = run.implementation(graph.value(made.outputs[0]).producer);
  return results;
}

// Shapes that are large enough to be cut into pieces, some of them odd.
inline std::vector<OpCase> large_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, OpKind kind, std::vector<std::optional<Tensor>> inputs,
                       Attributes attributes = {}) {
    cases.push_back({.name = std::move(name),
                     .kind = kind,
                     .attributes = std::move(attributes),
                     .inputs = std::move(inputs),
                     .tolerance = 2e-5,
                     .no_gradient = {}});
  };
  const auto r = random_tensor;
  add("MatMul tiles", OpKind::MatMul, {r({3, 67, 200}, 1), r({200, 333}, 2)});
  add("MatMul long sum", OpKind::MatMul, {r({9000, 40}, 3), r({9000, 70}, 4)}, {{Attr::TransA, int64_t{1}}});
  add("MatMul batches", OpKind::MatMul, {r({2, 4, 65, 33}, 5), r({2, 4, 70, 33}, 6)},
      {{Attr::TransB, int64_t{1}}});
  add("MatMul broadcast", OpKind::MatMul, {r({4, 1, 50, 60}, 7), r({3, 60, 20}, 8)});
  add("MatMul wide", OpKind::MatMul, {r({256, 192}, 9), r({1000, 192}, 10)}, {{Attr::TransB, int64_t{1}}});
  const Attributes conv{{Attr::Strides, Ints{1, 1}},
                        {Attr::Pads, Ints{1, 1, 1, 1}},
                        {Attr::Dilations, Ints{1, 1}},
                        {Attr::Groups, int64_t{1}}};
  const auto with_shape = [](Attributes a, Shape shape) {
    a.set(Attr::Shape, std::move(shape));
    return a;
  };
  for (const auto& [n, c, m, s] :
       {std::tuple{3, 16, 24, 20}, {1, 3, 16, 33}, {5, 13, 7, 17}, {9, 64, 64, 14}}) {
    const std::string size =
        " " + std::to_string(n) + "x" + std::to_string(c) + "x" + std::to_string(m) + "x" + std::to_string(s);
    add("Conv" + size, OpKind::Conv, {r({n, c, s, s}, 11), r({m, c, 3, 3}, 12), r({m}, 13)}, conv);
    add("ConvGradInput" + size, OpKind::ConvGradInput, {r({n, m, s, s}, 14), r({m, c, 3, 3}, 15)},
        with_shape(conv, {n, c, s, s}));
    add("ConvGradWeight" + size, OpKind::ConvGradWeight, {r({n, c, s, s}, 16), r({n, m, s, s}, 17)},
        with_shape(conv, {m, c, 3, 3}));
  }
  const Attributes norm{{Attr::Epsilon, 1e-5}}, layer{{Attr::Axis, int64_t{2}}, {Attr::Epsilon, 1e-5}};
  add("BatchNorm", OpKind::BatchNorm, {r({4, 19, 23, 31}, 18), r({19}, 19), r({19}, 20)}, norm);
  Tensor positive = r({19}, 25);
  for (float& v : positive.mutable_as<float>()) v = std::abs(v) + 0.5f;
  add("BatchNormGrad", OpKind::BatchNormGrad,
      {r({4, 19, 23, 31}, 21), r({4, 19, 23, 31}, 22), r({19}, 23), r({19}, 24), positive}, norm);
  add("LayerNorm", OpKind::LayerNorm, {r({3, 50, 333}, 26), r({333}, 27), r({333}, 28)}, layer);
  Tensor rstd = r({3, 50, 1}, 33);
  for (float& v : rstd.mutable_as<float>()) v = std::abs(v) + 0.5f;
  add("LayerNormGrad", OpKind::LayerNormGrad,
      {r({3, 50, 333}, 29), r({3, 50, 333}, 30), r({333}, 31), r({3, 50, 1}, 32), rstd}, layer);
  add("ReduceSum leading", OpKind::ReduceSum, {r({700, 90}, 34)},
      {{Attr::Axes, Ints{0}}, {Attr::KeepDims, int64_t{0}}});
  add("ReduceSum all", OpKind::ReduceSum, {r({300, 1000}, 35)},
      {{Attr::Axes, Ints{0, 1}}, {Attr::KeepDims, int64_t{0}}});
  add("ReduceMean channels", OpKind::ReduceMean, {r({6, 11, 30, 40}, 36)},
      {{Attr::Axes, Ints{0, 2, 3}}, {Attr::KeepDims, int64_t{1}}});
  add("Softmax rows", OpKind::Softmax, {r({100, 777}, 37)}, {{Attr::Axis, int64_t{1}}});
  add("Softmax columns", OpKind::Softmax, {r({5, 60, 200}, 38)}, {{Attr::Axis, int64_t{1}}});
  add("Transpose heads", OpKind::Transpose, {r({2, 33, 4, 64}, 39)}, {{Attr::Perm, Ints{0, 2, 1, 3}}});
  add("Transpose matrix", OpKind::Transpose, {r({3, 150, 210}, 40)}, {{Attr::Perm, Ints{0, 2, 1}}});
  add("Transpose mixed", OpKind::Transpose, {r({7, 30, 5, 66}, 41)}, {{Attr::Perm, Ints{3, 0, 1, 2}}});
  add("Add bias", OpKind::Add, {r({60, 1000}, 42), r({1000}, 43)});
  add("Mul column", OpKind::Mul, {r({60, 1000}, 44), r({60, 1}, 45)});
  add("Gelu", OpKind::Gelu, {r({100, 1001}, 46)}, {{Attr::Approximate, int64_t{1}}});
  add("Dropout", OpKind::Dropout, {r({1, 37, 999}, 47)}, {{Attr::Ratio, 0.3}, {Attr::Key, int64_t{5}}});
  std::vector<int64_t> ids(300);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * i % 97);
  const Tensor indices = dag::make_tensor({300}, std::span<const int64_t>(ids));
  add("Gather", OpKind::Gather, {r({97, 65}, 48), indices}, {{Attr::Axis, int64_t{0}}});
  add("GatherGrad", OpKind::GatherGrad, {r({300, 65}, 49), indices},
      {{Attr::Axis, int64_t{0}}, {Attr::Shape, Ints{97, 65}}});
  std::vector<int64_t> pairs(2 * 90);  // of elements that stand side by side
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i] = static_cast<int64_t>(i / 4 + i % 2);
  const Tensor taps = dag::make_tensor({90, 2}, std::span<const int64_t>(pairs));
  for (const int64_t axis : {1, 2}) {
    const std::string name = " axis " + std::to_string(axis);
    const Shape x = axis == 1 ? Shape{9, 46, 70} : Shape{9, 70, 46},
                y = axis == 1 ? Shape{9, 90, 70} : Shape{9, 70, 90};
    add("Resample" + name, OpKind::Resample, {r(x, 51), taps, r({90, 2}, 52)}, {{Attr::Axis, axis}});
    add("ResampleGrad" + name, OpKind::ResampleGrad, {r(y, 53), taps, r({90, 2}, 54)},
        {{Attr::Axis, axis}, {Attr::Shape, x}});
  }
  const Attributes grid{{Attr::Mode, std::string("linear")},
                        {Attr::PaddingMode, std::string("border")},
                        {Attr::AlignCorners, int64_t{0}}};
  add("GridSample", OpKind::GridSample, {r({2, 5, 30, 40}, 55), r({2, 33, 21, 2}, 56)}, grid);
  add("GridSampleGrad", OpKind::GridSampleGrad,
      {r({2, 5, 33, 21}, 57), r({2, 5, 30, 40}, 58), r({2, 33, 21, 2}, 59)}, grid);
  // Small weights: a cell of large ones doubles a rounding at every step.
  const auto small = [&](const Shape& shape, uint64_t seed) {
    Tensor made = r(shape, seed);
    for (float& v : made.mutable_as<float>()) v *= 0.2f;
    return made;
  };
  const Tensor lengths = dag::from_int64s({DType::I64, {37}}, std::vector<int64_t>(37, 4));
  for (const int64_t reverse : {0, 1}) {
    const std::string way = reverse ? " reverse" : "";
    const Attributes lstm{{Attr::Reverse, reverse}};
    add("Lstm" + way, OpKind::Lstm,
        {small({6, 37, 200}, 51), small({200, 50}, 52), small({37, 50}, 53), small({37, 50}, 54), lengths},
        lstm);
    add("LstmGrad" + way, OpKind::LstmGrad,
        {small({200, 50}, 58), small({6, 37, 200}, 59), small({6, 37, 50}, 60), small({6, 37, 50}, 55),
         small({37, 50}, 56), small({37, 50}, 57), std::nullopt, lengths},
        lstm);
    for (const int64_t linear : {0, 1}) {
      const std::string form = (linear ? " linear" : "") + way;
      const Attributes gru{{Attr::Reverse, reverse}, {Attr::LinearBeforeReset, linear}};
      add("Gru" + form, OpKind::Gru, {small({6, 37, 150}, 61), small({150, 50}, 62)}, gru);
      add("GruGrad" + form, OpKind::GruGrad,
          {small({150, 50}, 64), small({6, 37, 150}, 65), small({6, 37, 50}, 66), small({6, 37, 50}, 67),
           small({6, 37, 50}, 63), std::nullopt, lengths},
          gru);
    }
  }
  const Attributes rnn{{Attr::Reverse, int64_t{0}}, {Attr::Activation, std::string("tanh")}};
  add("Rnn", OpKind::Rnn, {small({6, 37, 50}, 68), small({50, 50}, 69)}, rnn);
  add("RnnGrad", OpKind::RnnGrad,
      {small({50, 50}, 71), small({6, 37, 50}, 72), small({6, 37, 50}, 70), std::nullopt, std::nullopt}, rnn);
  std::vector<int64_t> places(300 * 65);
  for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int64_t>(i * i % 97);
  const Tensor elements = dag::make_tensor({300, 65}, std::span<const int64_t>(places));
  add("GatherElements", OpKind::GatherElements, {r({97, 65}, 73), elements}, {{Attr::Axis, int64_t{0}}});
  add("GatherElementsGrad", OpKind::GatherElementsGrad, {r({300, 65}, 74), elements},
      {{Attr::Axis, int64_t{0}}, {Attr::Shape, Ints{97, 65}}});
  for (const char* reduction : {"none", "add", "max"})
    add("ScatterElements " + std::string(reduction), OpKind::ScatterElements,
        {r({97, 65}, 75), elements, r({300, 65}, 76)},
        {{Attr::Axis, int64_t{0}}, {Attr::Reduction, std::string(reduction)}});
  add("TopK", OpKind::TopK, {r({60, 2000}, 77)},
      {{Attr::Axis, int64_t{1}}, {Attr::Count, int64_t{9}}, {Attr::Largest, int64_t{1}}});
  const Attributes loss{{Attr::Axis, int64_t{1}}, {Attr::Reduction, std::string("mean")}};
  add("CrossEntropy", OpKind::CrossEntropy, {r({300, 97}, 50), indices}, loss);
  return cases;
}

}  // namespace weft::peer
