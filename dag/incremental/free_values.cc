#include "dag/incremental/free_values.h"

#include <algorithm>
#include <set>

#include "dag/op_table.h"

namespace weft::dag::incremental {
namespace {

// How far back from where a table is read its positions are taken. Beyond that it is computed whole.
constexpr int kDepthMax = 48;

// Constants as large as that are held once for all graphs.
constexpr int64_t kTableBytesMin = 1024;

Dim plain_dim(int64_t size) {
  Dim dim;
  append(dim, {Digit::Plain, size});
  return dim;
}

bool is_plain_slice(const Op& op) {
  if (op.kind != OpKind::Slice) return false;
  const Ints& steps = op.attributes.get_ints(Attr::Steps);
  return std::all_of(steps.begin(), steps.end(), [](int64_t step) { return step == 1; });
}

}  // namespace

bool is_table(const Graph& graph, const Op& op) {
  return op.kind == OpKind::Constant && graph.spec(op.outputs[0]).bytes().value >= kTableBytesMin;
}
std::string table_name(ValueId value) { return "table:" + std::to_string(value.index); }

ValueId FreeValues::reshape(ValueId value, Shape shape) {
  if (builder_.spec(value).shape == shape) return value;
  return builder_.add(OpKind::Reshape, {value}, {{Attr::Shape, std::move(shape)}});
}

ValueId FreeValues::whole(ValueId value) {
  if (const auto known = whole_.find(value); known != whole_.end()) return known->second;
  std::set<uint32_t> wanted;
  std::vector<uint32_t> left{graph_.value(value).producer.index};
  while (!left.empty()) {
    const uint32_t op = left.back();
    left.pop_back();
    if (whole_.contains(graph_.ops()[op].outputs[0]) || !wanted.insert(op).second) continue;
    for (const ValueId input : graph_.ops()[op].inputs)
      if (input.valid()) left.push_back(graph_.value(input).producer.index);
  }
  for (const uint32_t op : wanted) copy({op});
  return whole_.at(value);
}

void FreeValues::copy(OpId id) {
  const Op& op = graph_.op(id);
  const ValueId made = op.outputs[0];
  if (op.kind == OpKind::Initializer) {
    const std::string& name = op.attributes.get_string(Attr::Name);
    const Initializer* initializer = graph_.find_initializer(name);
    whole_[made] = builder_.initializer(name, graph_.spec(made), initializer->role);
    return;
  }
  if (is_table(graph_, op)) {
    whole_[made] = builder_.initializer(table_name(made), graph_.spec(made), InitializerRole::Buffer);
    return;
  }
  if (op.kind == OpKind::Constant) {
    whole_[made] = builder_.constant(graph_.constant(op), graph_.value(made).name);
    return;
  }
  std::vector<ValueId> inputs;
  inputs.reserve(op.inputs.size());
  for (const ValueId input : op.inputs) inputs.push_back(input.valid() ? whole_.at(input) : input);
  const auto outputs = builder_.add_all(op.kind, std::move(inputs), op.attributes, op.name);
  for (size_t i = 0; i < outputs.size(); ++i) whole_[op.outputs[i]] = outputs[i];
}

ValueId FreeValues::at(ValueId value, const Axes& axes, int depth) {
  if (!axes.has(Digit::Row) && !axes.has(Digit::Key)) return whole(value);
  auto& known = at_[{value, to_string(axes)}];
  if (known.valid()) return known;
  ValueId found;
  const Op& op = graph_.producer(value);
  if (depth < kDepthMax && op.outputs.size() == 1) found = earlier(op, axes, depth + 1);
  if (!found.valid()) found = taken(whole(value), axes);
  return at_[{value, to_string(axes)}] = found;
}

// The op over operands at these positions; invalid where it is not one that can be taken so.
ValueId FreeValues::earlier(const Op& op, const Axes& axes, int depth) {
  switch (op.kind) {
    case OpKind::Reshape:
      return reshaped(op, axes, depth);
    case OpKind::Transpose:
      return transposed(op, axes, depth);
    case OpKind::Expand:
      return expanded(op, axes, depth);
    case OpKind::Gather:
      return gathered(op, axes, depth);
    case OpKind::Slice:
      return sliced(op, axes, depth);
    case OpKind::Concat:
      return concatenated(op, axes, depth);
    case OpKind::MatMul:
      return multiplied(op, axes, depth);
    default:
      if (op_table().row(op.kind).family == Family::Elementwise) return elementwise(op, axes, depth);
      return {};
  }
}

// The axes of an operand that is broadcast against `axes`.
Axes FreeValues::against(ValueId operand, const Axes& axes) const {
  const Shape& shape = graph_.spec(operand).shape;
  const size_t first = axes.rank() - shape.size();
  std::vector<Dim> dims;
  dims.reserve(shape.size());
  for (size_t d = 0; d < shape.size(); ++d) dims.push_back(shape[d] == 1 ? Dim{} : axes.dim(first + d));
  return Axes(std::move(dims));
}

ValueId FreeValues::elementwise(const Op& op, const Axes& axes, int depth) {
  std::vector<ValueId> inputs;
  inputs.reserve(op.inputs.size());
  for (const ValueId input : op.inputs)
    inputs.push_back(input.valid() ? at(input, against(input, axes), depth) : input);
  return builder_.add(op.kind, std::move(inputs), op.attributes, op.name);
}

ValueId FreeValues::reshaped(const Op& op, const Axes& axes, int depth) {
  const auto before = axes.reshaped(graph_.spec(op.inputs[0]).shape);
  if (!before) return {};
  return reshape(at(op.inputs[0], *before, depth), axes.shape(lengths_));
}

ValueId FreeValues::transposed(const Op& op, const Axes& axes, int depth) {
  const Ints& perm = op.attributes.get_ints(Attr::Perm);
  std::vector<Dim> dims(perm.size());
  for (size_t d = 0; d < perm.size(); ++d) dims[static_cast<size_t>(perm[d])] = axes.dim(d);
  return builder_.add(OpKind::Transpose, {at(op.inputs[0], Axes(std::move(dims)), depth)}, op.attributes,
                      op.name);
}

ValueId FreeValues::expanded(const Op& op, const Axes& axes, int depth) {
  return builder_.add(OpKind::Expand, {at(op.inputs[0], against(op.inputs[0], axes), depth)},
                      {{Attr::Shape, axes.shape(lengths_)}}, op.name);
}

ValueId FreeValues::gathered(const Op& op, const Axes& axes, int depth) {
  const auto axis = static_cast<std::ptrdiff_t>(op.attributes.get_int(Attr::Axis));
  const auto rank = static_cast<std::ptrdiff_t>(graph_.spec(op.inputs[1]).shape.size());
  const auto begin = axes.dims().begin();
  const Axes indices(std::vector<Dim>(begin + axis, begin + axis + rank));
  std::vector<Dim> dims(begin, begin + axis);
  append(dims.emplace_back(), {Digit::Plain, graph_.spec(op.inputs[0]).shape[static_cast<size_t>(axis)]});
  dims.insert(dims.end(), begin + axis + rank, axes.dims().end());
  return builder_.add(OpKind::Gather,
                      {at(op.inputs[0], Axes(std::move(dims)), depth), at(op.inputs[1], indices, depth)},
                      op.attributes, op.name);
}

// Dims that the op leaves whole are taken at the operand's positions, those that it cuts at its own.
ValueId FreeValues::sliced(const Op& op, const Axes& axes, int depth) {
  Ints starts = op.attributes.get_ints(Attr::Starts), sizes = op.attributes.get_ints(Attr::Sizes);
  const Ints& steps = op.attributes.get_ints(Attr::Steps);
  // Cuts in a row are one, so that rows are taken before any keys are.
  ValueId source = op.inputs[0];
  for (; is_plain_slice(op) && is_plain_slice(graph_.producer(source));
       source = graph_.producer(source).inputs[0])
    for (size_t d = 0; d < starts.size(); ++d)
      starts[d] += graph_.producer(source).attributes.get_ints(Attr::Starts)[d];
  const Shape& before = graph_.spec(source).shape;
  std::vector<Dim> dims;
  std::vector<size_t> cut_rows;
  for (size_t d = 0; d < before.size(); ++d) {
    const Dim& dim = axes.dim(d);
    const bool is_whole = sizes[d] == before[d] && steps[d] == 1;
    dims.push_back(is_whole ? dim : plain_dim(before[d]));
    if (Axes::is_plain(dim)) continue;
    if (!is_whole && (dim.size() != 1 || steps[d] != 1)) return {};
    if (!is_whole && Axes::has(dim, Digit::Row)) cut_rows.push_back(d);
    sizes[d] = Axes(std::vector<Dim>{dim}).shape(lengths_)[0];
  }
  ValueId value = at(source, Axes(std::move(dims)), depth);
  for (const size_t d : cut_rows) {
    value = gather_rows(value, static_cast<int64_t>(d), starts[d]);
    starts[d] = 0;
  }
  if (builder_.spec(value).shape == sizes) return value;
  return builder_.add(OpKind::Slice, {value},
                      {{Attr::Starts, starts}, {Attr::Sizes, sizes}, {Attr::Steps, steps}}, op.name);
}

ValueId FreeValues::concatenated(const Op& op, const Axes& axes, int depth) {
  const auto axis = static_cast<size_t>(op.attributes.get_int(Attr::Axis));
  if (!Axes::is_plain(axes.dim(axis))) return {};
  std::vector<ValueId> inputs;
  for (const ValueId input : op.inputs) {
    std::vector<Dim> dims = axes.dims();
    dims[axis] = plain_dim(graph_.spec(input).shape[axis]);
    inputs.push_back(at(input, Axes(std::move(dims)), depth));
  }
  return builder_.add(OpKind::Concat, std::move(inputs), op.attributes, op.name);
}

ValueId FreeValues::multiplied(const Op& op, const Axes& axes, int depth) {
  std::vector<ValueId> inputs;
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const Shape& shape = graph_.spec(op.inputs[i]).shape;
    const size_t rank = shape.size(), first = axes.rank() - rank;
    const bool is_swapped = op.attributes.get_int(i == 0 ? Attr::TransA : Attr::TransB) != 0;
    std::vector<Dim> dims;
    dims.reserve(rank);
    for (size_t d = 0; d < rank; ++d) dims.push_back(shape[d] == 1 ? Dim{} : axes.dim(first + d));
    const size_t outer = (i == 0) == is_swapped ? rank - 1 : rank - 2, inner = 2 * rank - 3 - outer;
    dims[outer] = axes.dim(axes.rank() - (i == 0 ? 2 : 1));
    dims[inner] = plain_dim(shape[inner]);
    inputs.push_back(at(op.inputs[i], Axes(std::move(dims)), depth));
  }
  return builder_.add(OpKind::MatMul, std::move(inputs), op.attributes, op.name);
}

// Position p lies at first + p.
ValueId FreeValues::gather_rows(ValueId value, int64_t axis, int64_t first) {
  ValueId places = positions_;
  if (first != 0)
    places = builder_.add(OpKind::Add, {places, builder_.scalar(DType::I64, static_cast<double>(first))});
  return builder_.add(OpKind::Gather, {value, places}, {{Attr::Axis, axis}});
}

// What a whole table holds at these positions. Rows come first: they leave less to cut keys of.
ValueId FreeValues::taken(ValueId value, const Axes& axes) {
  const std::vector<Factor> factors = axes.factors();
  value = reshape(value, axes.factor_shape({analysis_.length, analysis_.length}));
  for (size_t d = 0; d < factors.size(); ++d)
    if (factors[d].digit == Digit::Row) value = gather_rows(value, static_cast<int64_t>(d), 0);
  for (size_t d = 0; d < factors.size(); ++d) {
    if (factors[d].digit != Digit::Key || lengths_.keys == analysis_.length) continue;
    Shape sizes = builder_.spec(value).shape;
    sizes[d] = lengths_.keys;
    value = builder_.add(OpKind::Slice, {value},
                         {{Attr::Starts, Ints(sizes.size(), 0)},
                          {Attr::Sizes, std::move(sizes)},
                          {Attr::Steps, Ints(factors.size(), 1)}});
  }
  return reshape(value, axes.shape(lengths_));
}

}  // namespace weft::dag::incremental
