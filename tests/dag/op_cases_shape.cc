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

namespace {

// Of all pairs of types, zero points of each form, and sizes around those of tiles, panels and quads.
void add_integer_matmul_cases(OpCaseMaker& make) {
  struct Product {
    Shape a, b;
    bool lists;  // a zero point a row and a column
  };
  const Product products[] = {{{3, 5}, {5, 4}, false},          {{1, 7}, {7, 70}, true},
                              {{2, 13, 64}, {64, 65}, true},    {{2, 4, 9}, {2, 9, 3}, true},
                              {{3, 1, 2, 8}, {2, 8, 5}, false}, {{29, 300}, {300, 130}, false}};
  const auto bytes = [&](DType dtype, const Shape& dims) {
    return make.whole(dims, dtype == DType::U8 ? 0 : -128, dtype == DType::U8 ? 255 : 127, dtype);
  };
  int number = 0;
  for (const auto& [a, b, lists] : products)
    for (const DType of_a : {DType::U8, DType::I8})
      for (const DType of_b : {DType::U8, DType::I8}) {
        const std::string name = std::to_string(number++) + " " + std::string(to_string(of_a)) + " " +
                                 std::string(to_string(of_b));
        const Shape rows = lists ? Shape{a[a.size() - 2]} : Shape{},
                    columns = lists ? Shape{b.back()} : Shape{};
        make.add(OpKind::IntegerMatMul, name, {bytes(of_a, a), bytes(of_b, b)});
        make.add(OpKind::IntegerMatMul, name + " zeros",
                 {bytes(of_a, a), bytes(of_b, b), bytes(of_a, rows), bytes(of_b, columns)});
        make.add(OpKind::IntegerMatMul, name + " zero of b",
                 {bytes(of_a, a), bytes(of_b, b), std::nullopt, bytes(of_b, {})});
      }
  make.add(OpKind::IntegerMatMul, "sums beyond 2^24",
           {make.whole({2, 1500}, 250, 255, DType::U8), make.whole({1500, 3}, 250, 255, DType::U8)});
}

}  // namespace

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
  add_integer_matmul_cases(make);
}

}  // namespace weft::dag
