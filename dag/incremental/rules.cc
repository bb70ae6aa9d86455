// The rules of what moves elements, sums them along dims, or normalises.
#include <algorithm>

#include "dag/incremental/analyser.h"

namespace weft::dag::incremental {
namespace {

Dim plain(int64_t size) {
  Dim dim;
  append(dim, {Digit::Plain, size});
  return dim;
}
bool is_keys(const Dim& dim) { return dim.size() == 1 && dim[0].digit == Digit::Key; }

// The result holds the operand's elements, at other places.
Status moved(Rule& rule, Axes axes) {
  return rule.give(0, std::move(axes), rule.in(0).future, rule.in(0).ceiling);
}

Status reshape_rule(Rule& rule) {
  auto axes = rule.in(0).axes.reshaped(rule.out_shape());
  if (!axes)
    return rule.refuse("folds the sequence: " + to_string(rule.in(0).axes) + " becomes " +
                       dag::to_string(rule.out_shape()));
  rule.take(0);
  return moved(rule, std::move(*axes));
}

Status transpose_rule(Rule& rule) {
  std::vector<Dim> dims;
  for (const int64_t from : rule.op().attributes.get_ints(Attr::Perm))
    dims.push_back(rule.in(0).axes.dim(static_cast<size_t>(from)));
  rule.take(0);
  return moved(rule, Axes(std::move(dims)));
}

Status expand_rule(Rule& rule) {
  const Axes& axes = rule.in(0).axes;
  const size_t first = rule.out_shape().size() - axes.rank();
  std::vector<Dim> dims;
  dims.reserve(rule.out_shape().size());
  for (size_t d = 0; d < rule.out_shape().size(); ++d)
    dims.push_back(d >= first && !axes.dim(d - first).empty() ? axes.dim(d - first)
                                                              : plain(rule.out_shape()[d]));
  rule.take(0);
  return moved(rule, Axes(std::move(dims)));
}

Status slice_rule(Rule& rule) {
  const Attributes& attributes = rule.op().attributes;
  std::vector<Dim> dims;
  for (size_t d = 0; d < rule.in(0).axes.rank(); ++d) {
    const Dim& dim = rule.in(0).axes.dim(d);
    if (Axes::is_plain(dim)) {
      dims.push_back(plain(attributes.get_ints(Attr::Sizes)[d]));
      continue;
    }
    if (attributes.get_ints(Attr::Sizes)[d] != rule.shape(0)[d] || attributes.get_ints(Attr::Steps)[d] != 1)
      return rule.refuse("cuts the sequence");
    dims.push_back(dim);
  }
  rule.take(0);
  return moved(rule, Axes(std::move(dims)));
}

Status pad_rule(Rule& rule) {
  const Ints& pads = rule.op().attributes.get_ints(Attr::Pads);
  const size_t rank = rule.in(0).axes.rank();
  std::vector<Dim> dims;
  for (size_t d = 0; d < rank; ++d) {
    const Dim& dim = rule.in(0).axes.dim(d);
    if (!Axes::is_plain(dim) && (pads[d] != 0 || pads[rank + d] != 0))
      return rule.refuse("pads the sequence");
    dims.push_back(Axes::is_plain(dim) ? plain(rule.out_shape()[d]) : dim);
  }
  rule.take(0);
  return rule.give(0, Axes(std::move(dims)));
}

// Operands of one rank, which agree in all dims but `axis`, where none may have the sequence.
Status align_but(Rule& rule, size_t axis, std::vector<Dim>& dims) {
  dims.assign(rule.out_shape().size(), {});
  for (size_t i = 0; i < rule.count(); ++i) {
    if (rule.is_free(i)) continue;
    rule.take(i);
    for (size_t d = 0; d < dims.size(); ++d) {
      const Dim& dim = rule.in(i).axes.dim(d);
      if (d == axis && !Axes::is_plain(dim)) return rule.refuse("goes along the sequence");
      if (d == axis || dim.empty()) continue;
      if (!dims[d].empty() && dims[d] != dim)
        return rule.refuse("brings each position together with every other one, and is no product");
      dims[d] = dim;
    }
  }
  for (size_t i = 0; i < rule.count(); ++i) {
    if (!rule.is_free(i)) continue;
    std::vector<Dim> table;
    for (size_t d = 0; d < dims.size(); ++d) {
      const Dim own = plain(rule.shape(i)[d]);
      if (d != axis && dims[d].empty()) dims[d] = own;
      table.push_back(d == axis || own.empty() ? own : dims[d]);
    }
    rule.take(i, Use::Table, Axes(std::move(table)));
  }
  dims[axis] = plain(rule.out_shape()[axis]);
  return {};
}

Status concat_rule(Rule& rule) {
  std::vector<Dim> dims;
  WEFT_TRY_STATUS(align_but(rule, static_cast<size_t>(rule.op().attributes.get_int(Attr::Axis)), dims));
  const auto is_zero = [&](const ValueId&, size_t i) {
    return rule.in(i).is_pair() && rule.in(i).future == Future::Zero;
  };
  bool zero = true;
  for (size_t i = 0; i < rule.count(); ++i) zero = zero && is_zero(rule.op().inputs[i], i);
  return rule.give(0, Axes(std::move(dims)), zero ? Future::Zero : Future::Open);
}

Status gather_rule(Rule& rule) {
  const auto axis = static_cast<size_t>(rule.op().attributes.get_int(Attr::Axis));
  if (!rule.is_free(0) && !rule.is_free(1))
    return rule.refuse("looks up in what the tokens say, at places that the tokens say");
  rule.take(0);
  rule.take(1);
  const Axes &data = rule.taken(0).axes, &indices = rule.taken(1).axes;
  if (!Axes::is_plain(data.dim(axis))) return rule.refuse("cuts the sequence");
  std::vector<Dim> dims(data.dims().begin(), data.dims().begin() + static_cast<std::ptrdiff_t>(axis));
  dims.insert(dims.end(), indices.dims().begin(), indices.dims().end());
  dims.insert(dims.end(), data.dims().begin() + static_cast<std::ptrdiff_t>(axis) + 1, data.dims().end());
  return rule.give(0, Axes(std::move(dims)));
}

Status gather_elements_rule(Rule& rule) {
  const auto axis = static_cast<size_t>(rule.op().attributes.get_int(Attr::Axis));
  for (size_t d = 0; d < rule.out_shape().size(); ++d)
    if (d != axis && rule.shape(0)[d] != rule.shape(1)[d]) return rule.refuse("cuts the sequence");
  std::vector<Dim> dims;
  WEFT_TRY_STATUS(align_but(rule, axis, dims));
  return rule.give(0, Axes(std::move(dims)));
}

// The axes that are left without `axes`.
Axes without(const Axes& axes, const std::vector<size_t>& gone, bool keeps) {
  std::vector<Dim> dims;
  for (size_t d = 0; d < axes.rank(); ++d) {
    const bool goes = std::find(gone.begin(), gone.end(), d) != gone.end();
    if (!goes)
      dims.push_back(axes.dim(d));
    else if (keeps)
      dims.push_back({});
  }
  return Axes(std::move(dims));
}

}  // namespace

Status shape_rule(Rule& rule) {
  switch (rule.op().kind) {
    case OpKind::Reshape:
      return reshape_rule(rule);
    case OpKind::Transpose:
      return transpose_rule(rule);
    case OpKind::Expand:
      return expand_rule(rule);
    case OpKind::Slice:
      return slice_rule(rule);
    case OpKind::Pad:
      return pad_rule(rule);
    case OpKind::Concat:
      return concat_rule(rule);
    case OpKind::Gather:
      return gather_rule(rule);
    case OpKind::GatherElements:
      return gather_elements_rule(rule);
    default:
      return rule.refuse("is not known to leave positions apart");
  }
}

Status reduction_rule(Rule& rule) {
  const OpKind kind = rule.op().kind;
  const Trait& x = rule.in(0);
  std::vector<size_t> gone;
  bool over_keys = false;
  for (const int64_t axis : rule.op().attributes.get_ints(Attr::Axes)) {
    const Dim& dim = x.axes.dim(static_cast<size_t>(axis));
    gone.push_back(static_cast<size_t>(axis));
    if (Axes::is_plain(dim)) continue;
    const bool knows = (kind == OpKind::ReduceMax && x.future == Future::Masked) ||
                       (kind == OpKind::ReduceSum && x.future == Future::Zero);
    if (Axes::has(dim, Digit::Row)) rule.ask_to_turn(0);
    if (!is_keys(dim) || !knows) return rule.refuse("reduces over the whole sequence");
    over_keys = true;
  }
  rule.take(0);
  const bool keeps = rule.op().attributes.get_int(Attr::KeepDims) != 0;
  const bool zero = !over_keys && x.is_pair() && x.future == Future::Zero && kind != OpKind::ReduceProd;
  return rule.give(0, without(x.axes, gone, keeps), zero ? Future::Zero : Future::Open);
}

Status along_axis_rule(Rule& rule) {
  const auto axis = static_cast<size_t>(rule.op().attributes.get_int(Attr::Axis));
  const Axes& axes = rule.in(0).axes;
  if (!Axes::is_plain(axes.dim(axis))) return rule.refuse("goes along the sequence");
  rule.take(0);
  const bool keeps = rule.op().attributes.get_int(Attr::KeepDims) != 0;
  if (rule.op().kind == OpKind::ArgMax || rule.op().kind == OpKind::ArgMin)
    return rule.give(0, without(axes, {axis}, keeps));
  std::vector<Dim> dims = axes.dims();
  dims[axis] = plain(rule.out_shape()[axis]);
  return rule.give_all(Axes(std::move(dims)));
}

Status normalisation_rule(Rule& rule) {
  const Op& op = rule.op();
  if (op.kind != OpKind::LayerNorm && op.kind != OpKind::BatchNormInference)
    return rule.refuse("belongs to training");
  for (size_t i = 1; i < rule.count(); ++i)
    if (rule.has(i) && !rule.is_free(i)) return rule.refuse("normalises by what the tokens say");
  if (rule.is_free(0)) return rule.refuse("normalises by what the tokens say");
  const Axes& axes = rule.in(0).axes;
  const auto first = static_cast<size_t>(op.attributes.get_int(Attr::Axis));
  for (size_t d = 0; d < axes.rank(); ++d) {
    const bool alone = op.kind == OpKind::LayerNorm ? d < first : d != 1;
    if (!alone && !Axes::is_plain(axes.dim(d))) return rule.refuse("normalises over the whole sequence");
  }
  for (size_t i = 0; i < rule.count(); ++i) rule.take(i);
  return rule.give_all(axes);
}

Status by_sample_rule(Rule& rule) {
  for (size_t i = 1; i < rule.count(); ++i)
    if (rule.has(i) && !rule.is_free(i)) return rule.refuse("is not known to leave positions apart");
  if (rule.is_free(0)) return rule.refuse("is not known to leave positions apart");
  const Axes& axes = rule.in(0).axes;
  for (size_t d = 1; d < axes.rank(); ++d)
    if (!Axes::is_plain(axes.dim(d))) return rule.refuse("reaches over neighbouring positions");
  for (size_t i = 0; i < rule.count(); ++i) rule.take(i);
  for (size_t i = 0; i < rule.op().outputs.size(); ++i) {
    if (rule.out_shape(i)[0] != rule.shape(0)[0]) return rule.refuse("is not known to leave positions apart");
    std::vector<Dim> dims{axes.dim(0)};
    for (size_t d = 1; d < rule.out_shape(i).size(); ++d) dims.push_back(plain(rule.out_shape(i)[d]));
    WEFT_TRY_STATUS(rule.give(i, Axes(std::move(dims))));
  }
  return {};
}

Status softmax_rule(Rule& rule) {
  const Trait& x = rule.in(0);
  const Dim& dim = x.axes.dim(static_cast<size_t>(rule.op().attributes.get_int(Attr::Axis)));
  rule.take(0);
  if (Axes::is_plain(dim)) return rule.give(0, x.axes);
  if (Axes::has(dim, Digit::Row)) {
    rule.ask_to_turn(0);
    return rule.refuse("normalises over the positions that are computed");
  }
  if (!is_keys(dim) || rule.op().kind != OpKind::Softmax)
    return rule.refuse("normalises over more than the positions so far");
  if (x.future != Future::Masked)
    return rule.refuse("looks at later positions: no mask of -1e4 or less keeps them out");
  return rule.give(0, x.axes, Future::Zero);
}

}  // namespace weft::dag::incremental
