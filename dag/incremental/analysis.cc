#include "dag/incremental/analysis.h"

#include <algorithm>

#include "dag/incremental/analyser.h"
#include "dag/op_table.h"

namespace weft::dag::incremental {

tl::unexpected<Error> Rule::refuse(const std::string& reason) const {
  return fail(ErrorCode::Unsupported, std::string(to_string(op_.kind)) +
                                          (op_.name.empty() ? "" : " '" + op_.name.substr(0, 128) + "'") +
                                          " " + reason);
}

void Rule::take(size_t i) {
  if (!has(i)) return;
  if (is_free(i))
    operands_[i] = {Use::Table, Axes::plain(shape(i))};
  else
    operands_[i] = {Use::Rows, in(i).axes};
}

OpId Rule::pairs_by() const {
  for (size_t i = 0; i < count(); ++i)
    if (has(i) && in(i).is_pair()) return in(i).pairs_by;
  return {};
}

namespace {

// Whether `dim` may stand where `against` does; an empty one takes the place of nothing.
bool fits(const Dim& dim, const Dim& against) { return dim.empty() || against.empty() || dim == against; }

bool fits(const Axes& axes, const std::vector<Dim>& dims) {
  const size_t first = dims.size() - axes.rank();
  for (size_t d = 0; d < axes.rank(); ++d)
    if (!fits(axes.dim(d), dims[first + d])) return false;
  return true;
}

void lay(const Axes& axes, std::vector<Dim>& dims) {
  const size_t first = dims.size() - axes.rank();
  for (size_t d = 0; d < axes.rank(); ++d)
    if (!axes.dim(d).empty()) dims[first + d] = axes.dim(d);
}

}  // namespace

Status Rule::align(const Shape& against, std::vector<Dim>& dims, std::span<const size_t> which) {
  dims.resize(against.size());
  // Pairs first: they say what is a row and what a key.
  for (const bool pairs : {true, false}) {
    for (const size_t i : which) {
      if (!has(i) || is_free(i) || in(i).is_pair() != pairs) continue;
      const Axes turned = in(i).axes.exchanged();
      if (pairs && !fits(in(i).axes, dims))
        for (const size_t other : which) ask_to_turn(other);
      const bool as_keys = !pairs && !fits(in(i).axes, dims) && fits(turned, dims);
      if (!as_keys && !fits(in(i).axes, dims))
        return refuse("brings each position together with every other one, and is no product");
      take(i, as_keys ? Use::Keys : Use::Rows, as_keys ? turned : in(i).axes);
      lay(operands_[i].axes, dims);
    }
  }
  for (const size_t i : which) {
    if (!has(i) || !is_free(i)) continue;
    std::vector<Dim> table;
    const size_t first = dims.size() - shape(i).size();
    for (size_t d = 0; d < shape(i).size(); ++d) {
      Dim dim;
      append(dim, {Digit::Plain, shape(i)[d]});
      Dim& place = dims[first + d];
      if (place.empty()) place = dim;
      table.push_back(dim.empty() ? dim : place);
    }
    take(i, Use::Table, Axes(std::move(table)));
  }
  return {};
}

Status Rule::give(size_t i, Axes axes, Future future, double ceiling) {
  int rows = 0, keys = 0;
  for (const Factor& factor : axes.factors()) {
    rows += factor.digit == Digit::Row;
    keys += factor.digit == Digit::Key;
  }
  if (rows != 1 || keys > 1)
    return refuse(rows == 0 ? "leaves no position of the sequence in its result"
                            : "has the sequence in its result more than once");
  analysis_.values[op_.outputs[i].index] = {.free = false,
                                            .axes = std::move(axes),
                                            .future = future,
                                            .ceiling = ceiling,
                                            .pairs_by = keys == 0            ? OpId{}
                                                        : pairs_by().valid() ? pairs_by()
                                                                             : id_};
  return {};
}

Status Rule::give_all(const Axes& axes) {
  for (size_t i = 0; i < op_.outputs.size(); ++i) {
    if (out_shape(i).size() != axes.rank()) return refuse("has results of several ranks");
    std::vector<Dim> dims;
    dims.reserve(axes.rank());
    for (size_t d = 0; d < axes.rank(); ++d) dims.push_back(out_shape(i)[d] == 1 ? Dim{} : axes.dim(d));
    if (const Axes own(dims); own.shape({analysis_.length, analysis_.length}) != out_shape(i))
      return refuse("has results of several shapes");
    WEFT_TRY_STATUS(give(i, Axes(std::move(dims))));
  }
  return {};
}

namespace {

// Ops that look at each sample, the first dim, by itself.
bool is_by_sample(Family family) {
  return family == Family::Convolution || family == Family::Pooling || family == Family::Sampling;
}

Status apply_rule(Rule& rule, const OpTable& table, bool turned) {
  const OpKind kind = rule.op().kind;
  switch (table.row(kind).family) {
    case Family::Elementwise:
      return elementwise_rule(rule);
    case Family::Shape:
      return shape_rule(rule);
    case Family::MatMul:
      if (kind == OpKind::MatMul || kind == OpKind::IntegerMatMul) return product_rule(rule, turned);
      if (kind == OpKind::StoredMatMul || kind == OpKind::StoredWeight) return stored_rule(rule);
      return rule.refuse("is not known to leave positions apart");
    case Family::Softmax:
      if (kind == OpKind::Softmax || kind == OpKind::LogSoftmax) return softmax_rule(rule);
      return rule.refuse("belongs to training");
    case Family::Reduction:
      if (kind == OpKind::ArgMax || kind == OpKind::ArgMin || kind == OpKind::CumSum || kind == OpKind::TopK)
        return along_axis_rule(rule);
      return reduction_rule(rule);
    case Family::Normalisation:
      return normalisation_rule(rule);
    case Family::Recurrent:
      return rule.refuse("goes along the sequence step by step");
    case Family::Random:
      return rule.refuse("draws at random");
    default:
      if (is_by_sample(table.row(kind).family)) return by_sample_rule(rule);
      return rule.refuse("is not known to leave positions apart");
  }
}

bool all_free(const Analysis& analysis, const Op& op) {
  return std::all_of(op.inputs.begin(), op.inputs.end(),
                     [&](ValueId v) { return !v.valid() || analysis.values[v.index].free; });
}

// From op `first` on, what comes before it being known. The result is the product that is to be turned, where
// that alone is wrong.
Result<OpId> analyse_from(uint32_t first, Analysis& analysis, ValueId tokens,
                          const std::set<uint32_t>& turned, const Fold& fold,
                          std::map<std::string, Range>& ranges) {
  const Graph& graph = *analysis.graph;
  for (uint32_t i = first; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    if (op.inputs.empty()) {
      if (op.kind == OpKind::Input && op.outputs[0] != tokens)
        return fail(ErrorCode::Unsupported, "input '" + op.name + "' is no token and has no value");
      continue;
    }
    if (all_free(analysis, op)) continue;
    Rule rule(analysis, {i}, fold, ranges);
    const Status fits = apply_rule(rule, op_table(), turned.contains(i));
    for (const OpId turn : rule.turns())
      if (!fits && !turned.contains(turn.index)) return turn;
    if (!fits) return fail(fits.error());
    analysis.operands[i] = std::move(rule.operands());
  }
  return OpId{};
}

}  // namespace

Result<Analysis> analyse(const Graph& graph, ValueId tokens, const Fold& fold) {
  const Shape& shape = graph.spec(tokens).shape;
  if (shape.empty() || shape.size() > 2 || (shape.size() == 2 && shape[0] != 1) || shape.back() < 2)
    return fail(ErrorCode::Unsupported,
                "the tokens are " + dag::to_string(graph.spec(tokens)) +
                    ": wanted is one sequence, [1, T] or [T], of two positions or more");
  Analysis analysis{.graph = &graph, .length = shape.back(), .values = {}, .operands = {}};
  analysis.values.resize(graph.values().size());
  analysis.operands.resize(graph.ops().size());
  std::vector<Dim> dims(shape.size());
  dims.back() = {{Digit::Row, analysis.length}};
  analysis.values[tokens.index] = {.free = false, .axes = Axes(std::move(dims))};
  std::set<uint32_t> turned;
  std::map<std::string, Range> ranges;
  for (uint32_t first = 0;;) {
    WEFT_TRY(const OpId turn, analyse_from(first, analysis, tokens, turned, fold, ranges));
    if (!turn.valid()) return analysis;
    turned.insert(turn.index);
    first = turn.index;
  }
}

}  // namespace weft::dag::incremental
