#include "dag/op_table.h"

#include <algorithm>

namespace weft::dag {

std::string_view to_string(Family family) {
  switch (family) {
    case Family::Leaf:
      return "leaf";
    case Family::Elementwise:
      return "elementwise";
    case Family::Shape:
      return "shape";
    case Family::Reduction:
      return "reduction";
    case Family::MatMul:
      return "matmul";
    case Family::Convolution:
      return "convolution";
    case Family::Normalisation:
      return "normalisation";
    case Family::Softmax:
      return "softmax";
    case Family::Pooling:
      return "pooling";
    case Family::Random:
      return "random";
    case Family::Sampling:
      return "sampling";
    case Family::Recurrent:
      return "recurrent";
  }
  return "unknown";
}

void OpTable::add(OpRow row) {
  OpRow& slot = rows_[static_cast<size_t>(row.kind)];
  WEFT_CHECK_MSG(slot.about.empty(), "two rows for one op");
  WEFT_CHECK((row.differentiability == Differentiability::Differentiable) == (row.vjp != nullptr));
  slot = row;
}

namespace {
OpTable make_op_table() {
  OpTable table;
  add_leaf_ops(table);
  add_elementwise_ops(table);
  add_shape_ops(table);
  add_index_ops(table);
  add_reduction_ops(table);
  add_matmul_ops(table);
  add_stored_ops(table);
  add_attention_ops(table);
  add_convolution_ops(table);
  add_normalisation_ops(table);
  add_softmax_ops(table);
  add_pooling_ops(table);
  add_random_ops(table);
  add_sampling_ops(table);
  add_recurrent_ops(table);
  for (const OpRow& row : table.rows()) WEFT_CHECK_MSG(!row.about.empty(), "an op without a row");
  return table;
}
}  // namespace

const OpTable& op_table() {
  static const OpTable kTable = make_op_table();
  return kTable;
}

LayoutContext::LayoutContext(const Graph& graph, const Op& op, Layout blocked,
                             std::span<const Layout> layouts, bool any_blocked)
    : graph_(graph),
      op_(op),
      blocked_(blocked),
      block_(block_size(blocked)),
      layouts_(layouts),
      any_blocked_(any_blocked),
      inputs_(op.inputs.size(), Layout::Plain),
      outputs_(op.outputs.size(), Layout::Plain) {}

bool is_view(const Graph& graph, const Op& op) {
  return op_table().row(op.kind).view && graph.value(op.inputs[0]).layout == Layout::Plain;
}

int64_t block_size(Layout layout) {
  switch (layout) {
    case Layout::Plain:
      return 1;
    case Layout::Blocked8:
      return 8;
    case Layout::Blocked16:
      return 16;
  }
  return 1;
}

ValueId VjpContext::sum_to(ValueId cotangent, ValueId operand) {
  const Shape from = spec(cotangent).shape;
  const Shape to = spec(operand).shape;
  if (from == to) return cotangent;
  // Broadcasting prepends dims and stretches ones: sum over both, then drop the prepended ones by a reshape.
  const size_t prepended = from.size() - to.size();
  Ints axes;
  for (size_t i = 0; i < from.size(); ++i)
    if (i < prepended || (to[i - prepended] == 1 && from[i] != 1)) axes.push_back(static_cast<int64_t>(i));
  ValueId sum = cotangent;
  if (!axes.empty()) sum = add(OpKind::ReduceSum, {sum}, {{Attr::Axes, axes}, {Attr::KeepDims, int64_t{1}}});
  if (spec(sum).shape != to) sum = add(OpKind::Reshape, {sum}, {{Attr::Shape, to}});
  return sum;
}

FlopCount op_flops(const Graph& graph, const Op& op) {
  if (op.inputs.empty()) return {0};
  std::vector<const TensorSpec*> inputs;
  inputs.reserve(op.inputs.size());
  for (const ValueId input : op.inputs) inputs.push_back(input.valid() ? &graph.spec(input) : nullptr);
  std::vector<TensorSpec> outputs;
  outputs.reserve(op.outputs.size());
  for (const ValueId output : op.outputs) outputs.push_back(graph.spec(output));
  const OpRow& row = op_table().row(op.kind);
  if (row.flops) return row.flops(ShapeContext{inputs, op.attributes}, outputs);
  FlopCount count;
  for (const TensorSpec& output : outputs) count += {output.element_count()};
  return count;
}

Bytes op_bytes(const Graph& graph, const Op& op) {
  Bytes total;
  std::vector<ValueId> seen;
  for (const auto* list : {&op.inputs, &op.outputs})
    for (const ValueId value : *list) {
      if (!value.valid() || std::find(seen.begin(), seen.end(), value) != seen.end()) continue;
      seen.push_back(value);
      total += graph.spec(value).bytes();
    }
  return total;
}

Result<Shape> broadcast_shapes(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()), 1);
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1)
      return fail(ErrorCode::InvalidArgument,
                  "shapes " + to_string(a) + " and " + to_string(b) + " do not broadcast");
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  return out;
}

Result<int64_t> normalise_axis(int64_t axis, int64_t rank) {
  if (axis < -rank || axis >= rank)
    return fail(ErrorCode::InvalidArgument,
                "axis " + std::to_string(axis) + " is out of range for rank " + std::to_string(rank));
  return axis < 0 ? axis + rank : axis;
}

}  // namespace weft::dag
