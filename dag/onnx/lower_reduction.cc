// Reductions along axes.
#include <algorithm>
#include <limits>

#include "dag/onnx/lowering.h"

namespace weft::onnx {
namespace {

// What happens to x before the reduction, which one it is, and what happens after.
struct ReductionRow {
  std::string_view op_type;
  OpKind kind;
  enum class Before : uint8_t { Nothing, Abs, Square } before;
  enum class After : uint8_t { Nothing, Sqrt, Log } after;
};
using Before = ReductionRow::Before;
using After = ReductionRow::After;
constexpr ReductionRow kReductions[] = {
    {"ReduceSum", OpKind::ReduceSum, Before::Nothing, After::Nothing},
    {"ReduceMean", OpKind::ReduceMean, Before::Nothing, After::Nothing},
    {"ReduceMax", OpKind::ReduceMax, Before::Nothing, After::Nothing},
    {"ReduceMin", OpKind::ReduceMin, Before::Nothing, After::Nothing},
    {"ReduceProd", OpKind::ReduceProd, Before::Nothing, After::Nothing},
    {"ReduceL1", OpKind::ReduceSum, Before::Abs, After::Nothing},
    {"ReduceL2", OpKind::ReduceSum, Before::Square, After::Sqrt},
    {"ReduceSumSquare", OpKind::ReduceSum, Before::Square, After::Nothing},
    {"ReduceLogSum", OpKind::ReduceSum, Before::Nothing, After::Log},
};

struct Axes {
  Ints axes;
  bool keep = true;
  bool none = false;  // nothing is to be reduced
};

Result<Axes> read_axes(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  Axes form;
  const int64_t rank = n.in(0).rank();
  form.keep = n.int_attr("keepdims", 1) != 0;
  form.axes = n.ints_attr("axes");
  if (n.has(1)) {
    WEFT_TRY(form.axes, n.ints(1, "axes"));
  }
  if (form.axes.empty()) {
    form.none = n.int_attr("noop_with_empty_axes", 0) != 0;
    for (int64_t d = 0; d < rank && !form.none; ++d) form.axes.push_back(d);
    form.none = form.none || rank == 0;
    return form;
  }
  for (int64_t& axis : form.axes) {
    const auto normal = dag::normalise_axis(axis, rank);
    if (!normal) return n.invalid(normal.error().message);
    axis = *normal;
  }
  std::sort(form.axes.begin(), form.axes.end());
  if (std::adjacent_find(form.axes.begin(), form.axes.end()) != form.axes.end())
    return n.invalid("an axis is given twice");
  return form;
}

// A function of floats; of integers by way of double, back to their type.
Result<Item> of_float(NodeContext& n, OpKind kind, const Item& x) {
  if (is_float(x.dtype())) return n.emit(kind, {x});
  WEFT_TRY(Item y, n.cast(x, DType::F64));
  WEFT_TRY(y, n.emit(kind, {y}));
  return n.cast(y, x.dtype());
}

bool is_empty(const Item& x, const Axes& form) {
  return std::any_of(form.axes.begin(), form.axes.end(),
                     [&](int64_t axis) { return x.shape()[static_cast<size_t>(axis)] == 0; });
}

// What the largest or smallest of nothing is: the dtype's other end. Sums and products have theirs in the op.
std::optional<double> of_nothing(OpKind kind, DType dtype) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (kind != OpKind::ReduceMax && kind != OpKind::ReduceMin) return std::nullopt;
  if (dtype == DType::Bool) return kind == OpKind::ReduceMin;
  return kind == OpKind::ReduceMax ? -kInfinity : kInfinity;  // integers saturate
}

Shape reduced_shape(const Item& x, const Axes& form) {
  Shape shape;
  for (int64_t d = 0; d < x.rank(); ++d) {
    const bool reduced = std::binary_search(form.axes.begin(), form.axes.end(), d);
    if (!reduced) shape.push_back(x.shape()[static_cast<size_t>(d)]);
    if (reduced && form.keep) shape.push_back(1);
  }
  return shape;
}

// Of truth values, the largest is whether any holds and the smallest whether all do.
Result<Item> reduce(NodeContext& n, OpKind kind, const Item& x, const Axes& form) {
  if (form.none) return x;
  if (is_empty(x, form))
    if (const auto value = of_nothing(kind, x.dtype()))
      return n.expand(n.like(x, *value), reduced_shape(x, form));
  if (x.dtype() != DType::Bool) return n.reduce(kind, x, form.axes, form.keep);
  WEFT_TRY(Item y, n.cast(x, DType::U8));
  WEFT_TRY(y, n.reduce(kind, y, form.axes, form.keep));
  return n.cast(y, DType::Bool);
}

Status lower_reduction(NodeContext& n) {
  WEFT_TRY(const Axes form, read_axes(n));
  const ReductionRow* row = nullptr;
  for (const ReductionRow& candidate : kReductions)
    if (candidate.op_type == n.op_type()) row = &candidate;
  WEFT_CHECK(row != nullptr);
  Item y = n.in(0);
  const bool extremum = row->kind == OpKind::ReduceMax || row->kind == OpKind::ReduceMin;
  if (y.dtype() == DType::Bool && !extremum) return n.invalid("x is " + to_string(y.spec));
  switch (row->before) {
    case Before::Nothing:
      break;
    case Before::Abs: {
      WEFT_TRY(y, n.emit(OpKind::Abs, {y}));
      break;
    }
    case Before::Square: {
      WEFT_TRY(y, n.emit(OpKind::Mul, {y, y}));
      break;
    }
  }
  WEFT_TRY(y, reduce(n, row->kind, y, form));
  switch (row->after) {
    case After::Nothing:
      return n.give(y);
    case After::Sqrt:
      return n.give(of_float(n, OpKind::Sqrt, y));
    case After::Log:
      return n.give(of_float(n, OpKind::Log, y));
  }
  return {};
}

// log(sum(exp(x - m))) + m, with m the largest: no overflow, and the gradient through m cancels.
Status lower_log_sum_exp(NodeContext& n) {
  WEFT_TRY(const Axes form, read_axes(n));
  if (form.none) return n.give(n.in(0));
  const DType dtype = n.in(0).dtype();
  WEFT_TRY(const Item x, n.cast(n.in(0), is_float(dtype) ? dtype : DType::F64));
  if (is_empty(x, form))
    return n.give(n.expand(n.like(x, -std::numeric_limits<double>::infinity()), reduced_shape(x, form)));
  WEFT_TRY(Item largest, n.reduce(OpKind::ReduceMax, x, form.axes, true));
  // Of infinities alone: nothing is taken off, so that the sum says which.
  WEFT_TRY(const Item endless, n.emit(OpKind::IsInf, {largest}));
  WEFT_TRY(largest, n.emit(OpKind::Where, {endless, n.like(x, 0), largest}));
  WEFT_TRY(Item y, n.emit(OpKind::Sub, {x, largest}));
  WEFT_TRY(y, n.emit(OpKind::Exp, {y}));
  WEFT_TRY(y, n.reduce(OpKind::ReduceSum, y, form.axes, true));
  WEFT_TRY(y, n.emit(OpKind::Log, {y}));
  WEFT_TRY(y, n.emit(OpKind::Add, {y, largest}));
  WEFT_TRY(y, n.cast(y, dtype));
  return n.give(n.reshape(y, reduced_shape(x, form)));
}

Status lower_arg(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", 0, x.rank()));
  const OpKind kind = n.op_type() == "ArgMax" ? OpKind::ArgMax : OpKind::ArgMin;
  const Attributes attributes{{Attr::Axis, axis}, {Attr::KeepDims, int64_t{n.int_attr("keepdims", 1) != 0}}};
  if (n.int_attr("select_last_index", 0) == 0) return n.give(n.emit(kind, {x}, attributes));
  // The last of equals is the first when read backwards.
  const int64_t size = x.shape()[static_cast<size_t>(axis)];
  WEFT_TRY(const Item backwards, n.slice(x, axis, std::max<int64_t>(0, size - 1), size, -1));
  WEFT_TRY(const Item index, n.emit(kind, {backwards}, attributes));
  return n.give(n.emit(OpKind::Sub, {n.scalar(DType::I64, static_cast<double>(size - 1)), index}));
}

Result<int64_t> axis_operand(NodeContext& n) {
  WEFT_TRY(const int64_t given, n.one_int(1, "axis"));
  const auto axis = dag::normalise_axis(given, n.in(0).rank());
  if (!axis) return n.invalid(axis.error().message);
  return *axis;
}

Status lower_cumsum(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  WEFT_TRY(const int64_t axis, axis_operand(n));
  return n.give(n.emit(OpKind::CumSum, {n.in(0)},
                       {{Attr::Axis, axis},
                        {Attr::Exclusive, int64_t{n.int_attr("exclusive", 0) != 0}},
                        {Attr::Reverse, int64_t{n.int_attr("reverse", 0) != 0}}}));
}

// x moved `by` places along the axis, to its end or, backwards, to its begin; ones where nothing was.
Result<Item> moved(NodeContext& n, const Item& x, int64_t axis, int64_t by, bool backwards) {
  const int64_t size = x.shape()[static_cast<size_t>(axis)];
  Shape shape = x.shape();
  shape[static_cast<size_t>(axis)] = by;
  WEFT_TRY(const Item ones, n.expand(n.like(x, 1), shape));
  WEFT_TRY(const Item kept, n.slice(x, axis, backwards ? by : 0, size - by));
  Items parts{ones, kept};
  if (backwards) std::swap(parts[0], parts[1]);
  return n.emit(OpKind::Concat, std::move(parts), {{Attr::Axis, axis}});
}

// Each place times the one so many before it, over twice as many each time.
Status lower_cumprod(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  WEFT_TRY(const int64_t axis, axis_operand(n));
  const bool backwards = n.int_attr("reverse", 0) != 0;
  Item y = n.in(0);
  const int64_t size = y.shape()[static_cast<size_t>(axis)];
  if (n.int_attr("exclusive", 0) != 0 && size > 0) {
    WEFT_TRY(y, moved(n, y, axis, 1, backwards));
  }
  for (int64_t by = 1; by < size; by *= 2) {
    WEFT_TRY(const Item before, moved(n, y, axis, by, backwards));
    WEFT_TRY(y, n.emit(OpKind::Mul, {y, before}));
  }
  return n.give(std::move(y));
}

}  // namespace

std::span<const LowerRow> reduction_lowerings() {
  static const std::vector<LowerRow> kRows = [] {
    std::vector<LowerRow> all = {{"ReduceLogSumExp", lower_log_sum_exp, operands(0), operands(1)},
                                 {"ArgMax", lower_arg, kNoOperand},
                                 {"ArgMin", lower_arg, kNoOperand},
                                 {"CumSum", lower_cumsum, operands(0), operands(1)},
                                 {"CumProd", lower_cumprod, operands(0), operands(1)}};
    for (const ReductionRow& row : kReductions)
      all.push_back({row.op_type, lower_reduction, operands(0), operands(1)});
    return all;
  }();
  return kRows;
}

}  // namespace weft::onnx
