#include "dag/counted_mean.h"

#include <algorithm>
#include <numeric>

namespace weft::dag {
namespace {

// The places, in an operand of shape `from`, that the elements of a result show, where the result walks it
// from `start` with one stride a dim.
std::vector<int64_t> walk(const Shape& shape, int64_t start, const std::vector<int64_t>& strides) {
  std::vector<int64_t> places(static_cast<size_t>(TensorSpec{DType::I64, shape}.element_count()));
  Ints index(shape.size(), 0);
  int64_t place = start;
  for (int64_t& element : places) {
    element = place;
    for (size_t d = shape.size(); d-- > 0;) {
      place += strides[d];
      if (++index[d] < shape[d]) break;
      place -= shape[d] * strides[d];
      index[d] = 0;
    }
  }
  return places;
}

std::vector<int64_t> strides_of(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// By element of the op's result, the element of operand 0 that it is; nothing for other ops.
std::optional<std::vector<int64_t>> places_of(const Graph& graph, const Op& op) {
  const TensorSpec &x = graph.spec(op.inputs[0]), &y = graph.spec(op.outputs[0]);
  std::vector<int64_t> strides = strides_of(x.shape);
  switch (op.kind) {
    case OpKind::Cast:
      if (!is_integer(x.dtype) || !is_integer(y.dtype)) return std::nullopt;
      [[fallthrough]];
    case OpKind::Reshape: {
      std::vector<int64_t> same(static_cast<size_t>(x.element_count()));
      std::iota(same.begin(), same.end(), 0);
      return same;
    }
    case OpKind::Transpose: {
      std::vector<int64_t> permuted;
      for (const int64_t from : op.attributes.get_ints(Attr::Perm))
        permuted.push_back(strides[static_cast<size_t>(from)]);
      return walk(y.shape, 0, permuted);
    }
    case OpKind::Slice: {
      int64_t start = 0;
      for (size_t d = 0; d < strides.size(); ++d) {
        start += op.attributes.get_ints(Attr::Starts)[d] * strides[d];
        strides[d] *= op.attributes.get_ints(Attr::Steps)[d];
      }
      return walk(y.shape, start, strides);
    }
    default:
      return std::nullopt;
  }
}

struct Traced {
  std::string input;
  std::vector<uint32_t> reads;  // by element of a sample; empty: each once
};

// Which elements of an input the labels are. Nothing unless every sample's are read alike, and samples stay
// in their order.
std::optional<Traced> trace_labels(const Graph& graph, ValueId labels) {
  constexpr size_t kOpsMax = 64;
  std::vector<int64_t> places(static_cast<size_t>(graph.spec(labels).element_count()));
  std::iota(places.begin(), places.end(), 0);
  ValueId at = labels;
  for (size_t i = 0; graph.producer(at).kind != OpKind::Input; ++i) {
    const Op& op = graph.producer(at);
    if (i == kOpsMax || op.inputs.empty()) return std::nullopt;
    const auto of_operand = places_of(graph, op);
    if (!of_operand) return std::nullopt;
    for (int64_t& place : places) place = (*of_operand)[static_cast<size_t>(place)];
    at = op.inputs[0];
  }
  const TensorSpec& input = graph.spec(at);
  if (input.shape.empty() || input.shape[0] == 0 || input.element_count() == 0) return std::nullopt;
  const int64_t samples = input.shape[0], elements = input.element_count() / samples;
  const auto count = static_cast<int64_t>(places.size());
  if (count % samples != 0) return std::nullopt;
  std::vector<uint32_t> reads(static_cast<size_t>(elements), 0);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = places[static_cast<size_t>(i)], of_one = count / samples;
    if (place / elements != i / of_one) return std::nullopt;
    if (place / elements == 0) ++reads[static_cast<size_t>(place)];
    if (place % elements != places[static_cast<size_t>(i % of_one)]) return std::nullopt;
  }
  const bool once = std::all_of(reads.begin(), reads.end(), [](uint32_t times) { return times == 1; });
  return Traced{graph.value(at).name, once ? std::vector<uint32_t>{} : std::move(reads)};
}

const Tensor* constant_of(const Graph& graph, ValueId value) {
  const Op& op = graph.producer(value);
  return op.kind == OpKind::Constant ? &graph.constant(op) : nullptr;
}

std::optional<CountedMean> with_labels(const Graph& graph, ValueId labels, CountedMean mean) {
  const auto traced = trace_labels(graph, labels);
  if (!traced) return std::nullopt;
  mean.labels = traced->input;
  mean.rule.reads = traced->reads;
  return mean;
}

std::optional<CountedMean> mean_of_cross_entropy(const Graph& graph, OpId id) {
  const Op& op = graph.op(id);
  if (op.attributes.get_string(Attr::Reduction) != "mean") return std::nullopt;
  CountedMean mean{.cross_entropy = id};
  if (op.attributes.has(Attr::IgnoreIndex)) mean.rule.ignore_index = op.attributes.get_int(Attr::IgnoreIndex);
  if (op.inputs.size() > 2 && op.inputs[2].valid()) {
    const Tensor* weights = constant_of(graph, op.inputs[2]);
    if (!weights) return std::nullopt;
    mean.rule.class_weights = to_doubles(*weights);
  }
  return with_labels(graph, op.inputs[1], std::move(mean));
}

// What ReduceSum over all of its dims adds up; invalid for another value.
ValueId added_up(const Graph& graph, ValueId value) {
  const Op& op = graph.producer(value);
  const bool all = op.kind == OpKind::ReduceSum &&
                   op.attributes.get_ints(Attr::Axes).size() == graph.spec(op.inputs[0]).shape.size();
  return all ? op.inputs[0] : ValueId{};
}

// Ones, or Gather of the class weights by label; where some are ignored, 0 for these.
std::optional<CountedMean> mean_by_weights(const Graph& graph, CountedMean mean) {
  ValueId weights = mean.weights, labels;
  if (const Op& where = graph.producer(weights); where.kind == OpKind::Where) {
    const Op& equal = graph.producer(where.inputs[0]);
    const Tensor* zero = constant_of(graph, where.inputs[1]);
    if (equal.kind != OpKind::Equal || !zero || zero->element_count() != 1 || to_doubles(*zero)[0] != 0)
      return std::nullopt;
    const Tensor* ignored = constant_of(graph, equal.inputs[1]);
    if (!ignored || ignored->element_count() != 1 || !is_integer(ignored->dtype())) return std::nullopt;
    mean.rule.ignore_index = to_int64s(*ignored)[0];
    labels = equal.inputs[0];
    weights = where.inputs[2];
  }
  const Op& maker = graph.producer(weights);
  if (maker.kind == OpKind::Gather) {
    const Tensor* of_classes = constant_of(graph, maker.inputs[0]);
    if (!of_classes || of_classes->shape().size() != 1) return std::nullopt;
    mean.rule.class_weights = to_doubles(*of_classes);
    if (!labels.valid()) labels = maker.inputs[1];
  } else if (const Tensor* ones =
                 constant_of(graph, maker.kind == OpKind::Expand ? maker.inputs[0] : weights)) {
    for (const double one : to_doubles(*ones))
      if (one != 1) return std::nullopt;
  } else {
    return std::nullopt;
  }
  return labels.valid() ? with_labels(graph, labels, std::move(mean)) : std::nullopt;
}

}  // namespace

std::optional<CountedMean> find_counted_mean(const Graph& graph, ValueId loss) {
  while (graph.producer(loss).kind == OpKind::Reshape) loss = graph.producer(loss).inputs[0];
  const OpId id = graph.value(loss).producer;
  const Op& op = graph.op(id);
  if (op.kind == OpKind::CrossEntropy)
    return graph.value(loss).output_index == 0 ? mean_of_cross_entropy(graph, id) : std::nullopt;
  if (op.kind != OpKind::Div) return std::nullopt;
  CountedMean mean{.each = added_up(graph, op.inputs[0]), .weights = added_up(graph, op.inputs[1])};
  if (!mean.each.valid() || !mean.weights.valid() ||
      graph.spec(mean.each).shape != graph.spec(mean.weights).shape)
    return std::nullopt;
  return mean_by_weights(graph, std::move(mean));
}

}  // namespace weft::dag
