// Cases of the shape, reduction and matmul families.
#include "tests/dag/op_case_maker.h"

namespace weft::dag {
namespace {

void add_cut_cases(OpCaseMaker& make) {
  make.add(OpKind::Slice, "forward", {make.real({4, 5})},
           {{Attr::Starts, Ints{1, 0}}, {Attr::Sizes, Ints{2, 3}}, {Attr::Steps, Ints{1, 2}}});
  make.add(OpKind::Slice, "backward", {make.real({4, 5})},
           {{Attr::Starts, Ints{3, 4}}, {Attr::Sizes, Ints{4, 2}}, {Attr::Steps, Ints{-1, -3}}});
  make.add(OpKind::Slice, "empty", {make.real({4, 5})},
           {{Attr::Starts, Ints{0, 0}}, {Attr::Sizes, Ints{4, 0}}, {Attr::Steps, Ints{1, 1}}});
  make.add(OpKind::Slice, "integers", {make.whole({6}, 0, 9)},
           {{Attr::Starts, Ints{5}}, {Attr::Sizes, Ints{3}}, {Attr::Steps, Ints{-2}}});
  make.add(OpKind::SliceGrad, "", {make.real({2, 3})},
           {{Attr::Shape, Ints{4, 5}}, {Attr::Starts, Ints{1, 4}}, {Attr::Steps, Ints{2, -2}}});

  const Shape s = make.shape(3);
  make.add(OpKind::Concat, "axis 0", {make.real({2, s[1]}), make.real({s[0], s[1]})}, {{Attr::Axis, 0}});
  make.add(OpKind::Concat, "axis 1",
           {make.real({s[0], 1, s[2]}), make.real({s[0], 3, s[2]}), make.real({s[0], s[1], s[2]})},
           {{Attr::Axis, 1}});
  make.add(OpKind::Concat, "one", {make.real(s)}, {{Attr::Axis, 2}});
  make.add(OpKind::Concat, "integers", {make.whole({2}, 0, 9), make.whole({3}, 0, 9)}, {{Attr::Axis, 0}});

  for (const char* mode : {"constant", "reflect", "edge"}) {
    make.add(OpKind::Pad, std::string(mode), {make.real({3, 4})},
             {{Attr::Pads, Ints{1, 2, 2, 3}}, {Attr::Mode, mode}, {Attr::Value, 0.5}});
    make.add(OpKind::Pad, std::string(mode) + " crop", {make.real({4, 3, 2})},
             {{Attr::Pads, Ints{-1, 0, 1, 2, -1, 0}}, {Attr::Mode, mode}, {Attr::Value, 0.0}});
    make.add(OpKind::PadGrad, std::string(mode), {make.real({6, 9})},
             {{Attr::Pads, Ints{1, 2, 2, 3}}, {Attr::Mode, mode}, {Attr::Shape, Ints{3, 4}}});
  }
}

void add_gather_cases(OpCaseMaker& make) {
  make.add(OpKind::Gather, "rows", {make.real({5, 3}), make.whole({2, 4}, 0, 4)}, {{Attr::Axis, 0}});
  make.add(OpKind::Gather, "negative", {make.real({2, 5, 3}), make.whole({4}, -5, 4, DType::I32)},
           {{Attr::Axis, 1}});
  make.add(OpKind::Gather, "scalar index", {make.real({5, 3}), make.whole({}, 0, 2)}, {{Attr::Axis, 1}});
  make.add(OpKind::Gather, "integers", {make.whole({5}, 0, 9), make.whole({3}, 0, 4)}, {{Attr::Axis, 0}});
  make.add(OpKind::GatherGrad, "rows", {make.real({2, 4, 3}), make.whole({2, 4}, 0, 4)},
           {{Attr::Axis, 0}, {Attr::Shape, Ints{5, 3}}});
  make.add(OpKind::GatherGrad, "columns", {make.real({2, 4, 3}), make.whole({4}, -5, 4, DType::I32)},
           {{Attr::Axis, 1}, {Attr::Shape, Ints{2, 5, 3}}});
  make.add(OpKind::GatherElements, "axis 0", {make.real({5, 3}), make.whole({4, 2}, -5, 4)},
           {{Attr::Axis, 0}});
  make.add(OpKind::GatherElements, "axis 1", {make.real({3, 4}), make.whole({3, 6}, 0, 3, DType::I32)},
           {{Attr::Axis, 1}});
  make.add(OpKind::GatherElementsGrad, "", {make.real({4, 2}), make.whole({4, 2}, 0, 4)},
           {{Attr::Axis, 0}, {Attr::Shape, Ints{5, 3}}});
}

}  // namespace

void add_shape_cases(OpCaseMaker& make) {
  const Shape s = make.shape(3);
  make.add(OpKind::Reshape, "", {make.real(s)}, {{Attr::Shape, Ints{s[0] * s[1], 1, s[2]}}});
  make.add(OpKind::Reshape, "to scalar", {make.real({1, 1})}, {{Attr::Shape, Ints{}}});
  make.add(OpKind::Transpose, "3d", {make.real(s)}, {{Attr::Perm, Ints{2, 0, 1}}});
  make.add(OpKind::Transpose, "4d", {make.real(make.shape(4))}, {{Attr::Perm, Ints{0, 2, 1, 3}}});
  make.add(OpKind::Transpose, "2d", {make.real(make.shape(2, 7))}, {{Attr::Perm, Ints{1, 0}}});
  make.add(OpKind::Expand, "", {make.real({s[0], 1, s[2]})}, {{Attr::Shape, Ints{2, s[0], 3, s[2]}}});
  make.add(OpKind::Expand, "scalar", {make.real({})}, {{Attr::Shape, s}});
  make.add(OpKind::Reorder, "plain", {make.real({2, 3, 2})}, {{Attr::Layout, 0}});
  add_cut_cases(make);
  add_gather_cases(make);
}

void add_reduction_cases(OpCaseMaker& make) {
  const std::vector<Ints> axes{{0}, {1}, {2}, {0, 2}, {0, 1, 2}};
  for (const OpKind kind :
       {OpKind::ReduceSum, OpKind::ReduceMean, OpKind::ReduceMax, OpKind::ReduceMin, OpKind::ReduceProd})
    for (size_t i = 0; i < axes.size(); ++i) {
      const bool kinked = kind == OpKind::ReduceMax || kind == OpKind::ReduceMin;
      const Shape s = make.shape(3);
      const Tensor x = kinked                       ? make.apart(s)
                       : kind == OpKind::ReduceProd ? make.real(s, 0.5, 1.5)
                                                    : make.real(s);
      make.add(kind, "axes " + to_string(axes[i]), {x},
               {{Attr::Axes, axes[i]}, {Attr::KeepDims, static_cast<int64_t>(i % 2)}});
    }
  make.add(OpKind::ReduceSum, "integers", {make.whole({3, 4}, -9, 9)},
           {{Attr::Axes, Ints{1}}, {Attr::KeepDims, 0}});
  make.add(OpKind::ReduceMax, "integers", {make.whole({3, 4}, -9, 9)},
           {{Attr::Axes, Ints{0}}, {Attr::KeepDims, 0}});
  make.add(OpKind::ReduceProd, "integers", {make.whole({4}, 1, 9)},
           {{Attr::Axes, Ints{0}}, {Attr::KeepDims, 0}});
  // Two of a kind share as a central difference has it: half each.
  make.add(OpKind::ReduceMax, "ties", {make.floats({2, 3}, {1, 3, 3, 5, 2, 5})},
           {{Attr::Axes, Ints{1}}, {Attr::KeepDims, 0}});
  make.add(OpKind::ReduceMin, "ties", {make.floats({2, 3}, {1, 3, 1, 2, 5, 2})},
           {{Attr::Axes, Ints{1}}, {Attr::KeepDims, 1}});
  make.add(OpKind::ReduceProd, "zeros", {make.floats({3, 3}, {0.5, 0, 2, 0, 0, 3, 0, 0, 0})},
           {{Attr::Axes, Ints{1}}, {Attr::KeepDims, 0}});
  for (const OpKind kind : {OpKind::ArgMax, OpKind::ArgMin}) {
    make.add(kind, "last", {make.apart(make.shape(3))}, {{Attr::Axis, 2}, {Attr::KeepDims, 0}});
    make.add(kind, "ties", {make.whole({3, 5}, 0, 2)}, {{Attr::Axis, 1}, {Attr::KeepDims, 1}});
  }
  for (const int64_t exclusive : {0, 1})
    for (const int64_t reverse : {0, 1})
      make.add(OpKind::CumSum,
               std::string(exclusive ? "exclusive" : "inclusive") + (reverse ? " reverse" : ""),
               {make.real(make.shape(3))},
               {{Attr::Axis, 1}, {Attr::Exclusive, exclusive}, {Attr::Reverse, reverse}});
}

void add_matmul_cases(OpCaseMaker& make) {
  const std::vector<std::pair<Shape, Shape>> batches{{{}, {}},      {{3}, {}},        {{}, {2}},
                                                     {{2, 1}, {3}}, {{2, 3}, {2, 3}}, {{1}, {4}}};
  for (const int64_t trans_a : {0, 1})
    for (const int64_t trans_b : {0, 1})
      for (size_t i = 0; i < batches.size(); ++i) {
        const int64_t m = make.between(1, 5), k = make.between(1, 5), n = make.between(1, 5);
        Shape a = batches[i].first, b = batches[i].second;
        a.insert(a.end(), {trans_a ? k : m, trans_a ? m : k});
        b.insert(b.end(), {trans_b ? n : k, trans_b ? k : n});
        make.add(OpKind::MatMul,
                 std::string(trans_a ? "T" : "N") + (trans_b ? "T" : "N") + " batch " + std::to_string(i),
                 {make.real(a), make.real(b)}, {{Attr::TransA, trans_a}, {Attr::TransB, trans_b}});
      }
  make.add(OpKind::MatMul, "larger", {make.real({2, 9, 17}), make.real({17, 6})});
  make.add(OpKind::MatMul, "no inner dim", {make.real({2, 0}), make.real({0, 3})});
}

}  // namespace weft::dag
