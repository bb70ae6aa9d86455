#include "dag/incremental/emit.h"

#include <algorithm>
#include <map>
#include <optional>

#include "dag/incremental/arrangement.h"
#include "dag/incremental/free_values.h"

namespace weft::dag::incremental {
namespace {

// What lies before and behind the positions in a value.
struct Around {
  int64_t before = 1, after = 1;
};
Around around_rows(const Axes& axes) {
  Around around;
  bool passed = false;
  for (const Factor& factor : axes.factors()) {
    if (factor.digit == Digit::Row)
      passed = true;
    else
      (passed ? around.after : around.before) *= factor.size;
  }
  return around;
}

class PartEmitter {
 public:
  PartEmitter(const Analysis& analysis, const Parts& parts, uint32_t part, const Lengths& lengths,
              const OpTable& table)
      : analysis_(analysis),
        graph_(*analysis.graph),
        parts_(parts),
        part_(part),
        lengths_(lengths),
        builder_(table),
        free_(analysis, lengths, builder_) {}

  Graph run() {
    const Parts::Interface& interface = parts_.interfaces[part_];
    for (const ValueId value : interface.inputs) {
      const RowSpec spec = row_spec(analysis_, value);
      received_[value] = builder_.input(spec.name, {spec.dtype, {lengths_.rows, spec.width}});
    }
    free_.set_positions(builder_.input(Incremental::kPositions, {DType::I64, {lengths_.rows}}));
    for (const ValueId value : interface.caches) {
      const CacheSpec spec = cache_spec(analysis_, value);
      caches_[value] = builder_.input(spec.name, spec.with(lengths_.keys));
    }
    for (uint32_t op = 0; op < graph_.ops().size(); ++op)
      if (parts_.of_op[op] == part_) emit(op);
    for (const ValueId value : interface.outputs)
      builder_.output(row_name(value), packed(value), OutputRole::Activation);
    for (const ValueId value : interface.caches)
      builder_.output(cache_name(value), written(value), OutputRole::Activation);
    return builder_.finish();
  }

 private:
  const Axes& axes(ValueId value) const { return analysis_.values[value.index].axes; }
  ValueId reshape(ValueId value, Shape shape) {
    if (builder_.spec(value).shape == shape) return value;
    return builder_.add(OpKind::Reshape, {value}, {{Attr::Shape, std::move(shape)}});
  }
  // [a, b, c] as [b, a, c]
  ValueId exchange(ValueId value, int64_t a, int64_t b, int64_t c) {
    if (a == 1 || b == 1) return value;
    return builder_.add(OpKind::Transpose, {reshape(value, {a, b, c})}, {{Attr::Perm, Ints{1, 0, 2}}});
  }

  // A value as the source has it, of the positions that are computed.
  ValueId rows(ValueId value) {
    if (const auto known = rows_.find(value); known != rows_.end()) return known->second;
    const Around around = around_rows(axes(value));
    const ValueId packed = received_.at(value);
    return rows_[value] = reshape(exchange(packed, lengths_.rows, around.before, around.after),
                                  axes(value).shape(lengths_));
  }
  // The same as rows, one after another.
  ValueId packed(ValueId value) {
    const Around around = around_rows(axes(value));
    return reshape(exchange(rows(value), around.before, lengths_.rows, around.after),
                   {lengths_.rows, around.before * around.after});
  }

  // The cache of `value` with the new rows in it.
  ValueId written(ValueId value) {
    if (const auto known = written_.find(value); known != written_.end()) return known->second;
    const CacheSpec spec = cache_spec(analysis_, value);
    const ValueId update = reshape(rows(value), axes(value).factor_shape(lengths_));
    return written_[value] = builder_.add(OpKind::CacheWrite, {caches_.at(value), update, free_.positions()},
                                          {{Attr::Axis, spec.axis}});
  }
  // A value as the source has it, of all positions so far.
  ValueId keys(ValueId value) {
    if (const auto known = keys_.find(value); known != keys_.end()) return known->second;
    const Shape shape = axes(value).exchanged().shape(lengths_);
    const ValueId kept = parts_.cached.at(value);
    ValueId result = reshape(written(kept), axes(kept).exchanged().shape(lengths_));
    for (const OpId move : moves_to(value)) result = move_keys(graph_.op(move), result);
    return keys_[value] = reshape(result, shape);
  }
  // From what its cache holds.
  std::vector<OpId> moves_to(ValueId value) const {
    std::vector<OpId> moves;
    for (ValueId at = value; at != parts_.cached.at(value); at = graph_.producer(at).inputs[0])
      moves.push_back(graph_.value(at).producer);
    std::reverse(moves.begin(), moves.end());
    return moves;
  }
  ValueId move_keys(const Op& op, ValueId operand) {
    Attributes attributes = op.attributes;
    if (op.kind != OpKind::Transpose)
      attributes.set(Attr::Shape, axes(op.outputs[0]).exchanged().shape(lengths_));
    return builder_.add(op.kind, {operand}, std::move(attributes), op.name);
  }

  // How keys lie in their cache, where heads are repeated.
  std::optional<Arrangement> repeated(ValueId value) const {
    Arrangement arrangement(axes(parts_.cached.at(value)).exchanged().shape(lengths_));
    for (const OpId move : moves_to(value)) {
      const Op& op = graph_.op(move);
      const Shape shape = axes(op.outputs[0]).exchanged().shape(lengths_);
      if (op.kind == OpKind::Transpose)
        arrangement.transpose(op.attributes.get_ints(Attr::Perm));
      else if (op.kind == OpKind::Expand)
        arrangement.expand(shape);
      else if (!arrangement.reshape(shape))
        return std::nullopt;
    }
    if (arrangement.repeats_in_last(2) || !arrangement.repeats_before_last(2)) return std::nullopt;
    return arrangement;
  }
  // A product with keys of heads that are repeated, over the keys as they are kept: a batch dim of H heads is
  // taken apart into those that are kept and how often each is used, and there the keys have 1. Nothing where
  // no heads are repeated.
  std::optional<ValueId> grouped_product(uint32_t index) {
    const Op& op = graph_.ops()[index];
    if (op.kind != OpKind::MatMul) return std::nullopt;
    const auto& operands = analysis_.operands[index];
    if (operands[0].use != Use::Keys && operands[1].use != Use::Keys) return std::nullopt;
    const size_t k = operands[0].use == Use::Keys ? 0 : 1;
    const auto arrangement = repeated(op.inputs[k]);
    if (!arrangement || operands[1 - k].use != Use::Rows) return std::nullopt;
    ValueId sides[2];
    sides[k] = kept_apart(*arrangement, parts_.cached.at(op.inputs[k]));
    sides[1 - k] = taken_apart(*arrangement, rows(op.inputs[1 - k]));
    const ValueId product = builder_.add(op.kind, {sides[0], sides[1]}, op.attributes, op.name);
    return reshape(product, axes(op.outputs[0]).shape(lengths_));
  }
  ValueId kept_apart(Arrangement arrangement, ValueId kept) {
    Shape shape;
    const auto& dims = arrangement.dims();
    for (size_t d = 0; d + 2 < dims.size(); ++d)
      for (const Arrangement::Span& span : dims[d]) shape.push_back(span.stride == 0 ? 1 : span.size);
    for (const bool last : {false, true}) {
      int64_t size = 1;
      for (const Arrangement::Span& span : dims[dims.size() - (last ? 1 : 2)]) size *= span.size;
      shape.push_back(size);
    }
    arrangement.drop_repeats();
    return reshape(arrangement.make(builder_, written(kept)), std::move(shape));
  }
  // The other operand, whose batch dims are those of the keys or 1.
  ValueId taken_apart(const Arrangement& arrangement, ValueId value) {
    const Shape whole = builder_.spec(value).shape;
    const auto& dims = arrangement.dims();
    Shape shape;
    for (size_t d = 0; d < whole.size(); ++d) {
      const bool is_batch = d + 2 < whole.size() && d + dims.size() >= whole.size();
      if (!is_batch) {
        shape.push_back(whole[d]);
        continue;
      }
      for (const Arrangement::Span& span : dims[d + dims.size() - whole.size()])
        shape.push_back(whole[d] == 1 ? 1 : span.size);
    }
    return reshape(value, std::move(shape));
  }

  void emit(uint32_t index) {
    const Op& op = graph_.ops()[index];
    if (const auto product = grouped_product(index)) {
      rows_[op.outputs[0]] = *product;
      builder_.set_name(*product, graph_.value(op.outputs[0]).name);
      return;
    }
    std::vector<ValueId> inputs;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const Operand& operand = analysis_.operands[index][i];
      switch (operand.use) {
        case Use::Absent:
          inputs.push_back({});
          break;
        case Use::Rows:
          inputs.push_back(rows(op.inputs[i]));
          break;
        case Use::Keys:
          inputs.push_back(keys(op.inputs[i]));
          break;
        case Use::Table:
          inputs.push_back(free_.at(op.inputs[i], operand.axes));
          break;
      }
    }
    const auto outputs = falls_in_a_line(op)
                             ? doubled(op, inputs[0])
                             : builder_.add_all(op.kind, std::move(inputs), attributes(op), op.name);
    for (size_t i = 0; i < outputs.size(); ++i) {
      rows_[op.outputs[i]] = outputs[i];
      builder_.set_name(outputs[i], graph_.value(op.outputs[i]).name);
    }
  }
  // Whether a reduction of one row would be one of neighbours, where that of several rows is of numbers that
  // stand apart: a backend may add up the one in another order than the other.
  bool falls_in_a_line(const Op& op) const {
    if (op_table().row(op.kind).family != Family::Reduction || lengths_.rows != 1) return false;
    const auto& reduced = op.attributes.get_ints(Attr::Axes);
    if (reduced.empty()) return false;
    bool has_row = false;
    for (auto d = static_cast<size_t>(reduced.back()) + 1; d < axes(op.inputs[0]).rank(); ++d)
      has_row = has_row || Axes::has(axes(op.inputs[0]).dim(d), Digit::Row);
    return has_row;
  }
  // The op over the row beside itself, of which one result is taken.
  std::vector<ValueId> doubled(const Op& op, ValueId row) {
    const Axes& from = axes(op.inputs[0]);
    const Lengths two{2, lengths_.keys};
    const Shape apart = from.factor_shape(lengths_);
    const ValueId line = reshape(row, apart);
    const ValueId pair = builder_.add(OpKind::Concat, {line, line}, {{Attr::Axis, row_axis(from)}});
    const ValueId both = builder_.add(op.kind, {reshape(pair, from.shape(two))}, attributes(op), op.name);
    const Axes& to = axes(op.outputs[0]);
    const Shape sizes = to.factor_shape(lengths_);
    const ValueId first = builder_.add(
        OpKind::Slice, {reshape(both, to.factor_shape(two))},
        {{Attr::Starts, Ints(sizes.size(), 0)}, {Attr::Sizes, sizes}, {Attr::Steps, Ints(sizes.size(), 1)}});
    return {reshape(first, to.shape(lengths_))};
  }
  static int64_t row_axis(const Axes& axes) {
    const std::vector<Factor> factors = axes.factors();
    const auto row = std::find_if(factors.begin(), factors.end(),
                                  [](const Factor& factor) { return factor.digit == Digit::Row; });
    return row - factors.begin();
  }

  Attributes attributes(const Op& op) const {
    Attributes attributes = op.attributes;
    const Shape shape = axes(op.outputs[0]).shape(lengths_);
    if (op.kind == OpKind::Reshape || op.kind == OpKind::Expand) attributes.set(Attr::Shape, shape);
    if (op.kind == OpKind::Slice) attributes.set(Attr::Sizes, shape);
    return attributes;
  }

  const Analysis& analysis_;
  const Graph& graph_;
  const Parts& parts_;
  uint32_t part_;
  Lengths lengths_;
  GraphBuilder builder_;
  FreeValues free_;
  std::map<ValueId, ValueId> received_, caches_;      // source value -> input
  std::map<ValueId, ValueId> rows_, keys_, written_;  // source value -> here
};

}  // namespace

std::string row_name(ValueId value) { return "row:" + std::to_string(value.index); }
std::string cache_name(ValueId value) { return "cache:" + std::to_string(value.index); }

RowSpec row_spec(const Analysis& analysis, ValueId value) {
  const Around around = around_rows(analysis.values[value.index].axes);
  return {row_name(value), analysis.graph->spec(value).dtype, around.before * around.after};
}

CacheSpec cache_spec(const Analysis& analysis, ValueId value) {
  CacheSpec spec{.name = cache_name(value), .dtype = analysis.graph->spec(value).dtype, .shape = {}};
  for (const Factor& factor : analysis.values[value.index].axes.factors()) {
    if (factor.digit == Digit::Row)
      spec.axis = static_cast<int64_t>(spec.shape.size());
    else
      spec.shape.push_back(factor.size);
  }
  return spec;
}

Graph emit_part(const Analysis& analysis, const Parts& parts, uint32_t part, const Lengths& lengths,
                const OpTable& table) {
  return PartEmitter(analysis, parts, part, lengths, table).run();
}

}  // namespace weft::dag::incremental
