#include "dag/passes/adapt.h"

#include <algorithm>
#include <map>

#include "base/glob.h"

namespace weft::dag {
namespace {

constexpr size_t kNameShown = 128;  // of a name, in messages

std::string in_quotes(std::string_view name) { return "'" + std::string(name.substr(0, kNameShown)) + "'"; }

bool flag(const Op& op, Attr name) { return op.attributes.get_int(name) != 0; }

// Why an adapter cannot stand beside the weight where this op reads it; empty: it can.
std::string refuse_reader(const Graph& graph, const Op& op, ValueId weight) {
  const Shape& shape = graph.spec(weight).shape;
  const auto reads = std::count(op.inputs.begin(), op.inputs.end(), weight);
  const bool beside_weight = std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId input) {
    return input.valid() && input != weight && graph.producer(input).kind == OpKind::Initializer;
  });  // both may have adapters, and their product would be missing
  const bool is_matrix = shape.size() == 2 && reads == 1;
  const bool is_kernel = shape.size() > 2 && op.inputs.size() > 1 && op.inputs[1] == weight && reads == 1 &&
                         std::all_of(shape.begin() + 2, shape.end(), [](int64_t d) { return d == 1; });
  if (op.kind == OpKind::MatMul && is_matrix && !beside_weight) return {};
  if (op.kind == OpKind::Gather && is_matrix && op.inputs[0] == weight && !flag(op, Attr::Axis) &&
      graph.spec(op.inputs[1]).rank() > 0)
    return {};
  if (op.kind == OpKind::Conv && is_kernel && op.attributes.get_int(Attr::Groups, 1) == 1) return {};
  return std::string(to_string(op.kind)) + (op.name.empty() ? "" : " " + in_quotes(op.name)) +
         " reads it as " + to_string(graph.spec(weight));
}

// Where adapters could stand in a graph.
class Places {
 public:
  explicit Places(const Graph& graph) : graph_(graph), users_(graph.users()) {}

  bool matches(const Initializer& initializer, std::string_view pattern) const {
    if (matches_glob(pattern, initializer.name)) return true;
    if (graph_.spec(initializer.value).rank() < 2) return false;
    const auto& readers = users_[initializer.value.index];
    return std::any_of(readers.begin(), readers.end(), [&](OpId reader) {
      return !graph_.op(reader).name.empty() && matches_glob(pattern, graph_.op(reader).name) &&
             refuse_reader(graph_, graph_.op(reader), initializer.value).empty();
    });
  }

  // Empty: one can stand there.
  std::string refuse(const Initializer& initializer) const {
    const TensorSpec& spec = graph_.spec(initializer.value);
    if (spec.dtype != DType::F32 || spec.rank() < 2) return "it is " + to_string(spec);
    if (initializer.role == InitializerRole::RunningStatistic) return "it is a running statistic";
    if (users_[initializer.value.index].empty()) return "nothing reads it";
    for (const OpId reader : users_[initializer.value.index])
      if (std::string why = refuse_reader(graph_, graph_.op(reader), initializer.value); !why.empty())
        return why;
    return {};
  }

  // Of one that is not refused. A table that is multiplied, too, as a decoder's last layer may be, is a
  // table.
  Adapter adapter(const Initializer& initializer, const AdapterTerms& terms) const {
    const auto& readers = users_[initializer.value.index];
    const Op* first = &graph_.op(readers.front());
    for (const OpId reader : readers)
      if (graph_.op(reader).kind == OpKind::Gather && first->kind != OpKind::Gather)
        first = &graph_.op(reader);
    Adapter adapter{.weight = initializer.name,
                    .node = first->name,
                    .rank = terms.rank,
                    .alpha = terms.alpha,
                    .dropout = terms.dropout};
    if (first->kind == OpKind::Gather) {
      adapter.form = Adapter::Form::Table;
      adapter.in_first = true;
    } else if (first->kind == OpKind::Conv) {
      adapter.form = Adapter::Form::Convolution;
    } else {
      const bool on_left = first->inputs[0] == initializer.value;
      adapter.in_first = on_left ? flag(*first, Attr::TransA) : !flag(*first, Attr::TransB);
    }
    return adapter;
  }

 private:
  const Graph& graph_;
  std::vector<std::vector<OpId>> users_;
};

struct Sides {
  int64_t in, out;
};
Sides sides(const Adapter& adapter, const Shape& weight) {
  return adapter.in_first ? Sides{weight[0], weight[1]} : Sides{weight[1], weight[0]};
}
TensorSpec factor_spec(int64_t rows, int64_t columns, const Shape& weight) {
  Shape shape{rows, columns};
  shape.resize(weight.size(), 1);
  return {DType::F32, std::move(shape)};
}

// Keys of draws that the graph has are below.
int64_t first_free_key(const Graph& graph) {
  int64_t key = 0;
  for (const Op& op : graph.ops())
    if (op.attributes.has(Attr::Key)) key = std::max(key, op.attributes.get_int(Attr::Key) + 1);
  return key;
}

class Adapting {
 public:
  Adapting(const Graph& graph, const std::vector<Adapter>& adapters, bool trains, const OpTable& table)
      : graph_(graph), trains_(trains), copy_(graph, table), key_(first_free_key(graph)) {
    for (const Adapter& adapter : adapters)
      adapters_[graph.find_initializer(adapter.weight)->value.index] = &adapter;
  }

  Graph run() {
    for (uint32_t i = 0; i < graph_.ops().size(); ++i) {
      const Op& op = graph_.ops()[i];
      copy_.copy(OpId{i});
      if (op.kind == OpKind::Initializer) {
        if (const auto found = adapters_.find(op.outputs[0].index); found != adapters_.end())
          add_factors(*found->second);
        continue;
      }
      for (const ValueId input : op.inputs)
        if (const auto found = input.valid() ? adapters_.find(input.index) : adapters_.end();
            found != adapters_.end())
          add_beside(op, input, *found->second);
    }
    copy_.copy_outputs();
    return copy_.finish();
  }

 private:
  struct Factors {
    ValueId a, b;
  };

  ValueId emit(OpKind kind, std::vector<ValueId> inputs, Attributes attributes, const Op& beside) {
    return copy_.builder().add(kind, std::move(inputs), std::move(attributes),
                               beside.name.empty() ? "" : beside.name + " adapter");
  }
  void set_forward() {
    copy_.builder().set_phase(Phase::Forward);
    copy_.builder().set_origin({});
  }

  void add_factors(const Adapter& adapter) {
    set_forward();
    const Shape& shape = graph_.spec(graph_.find_initializer(adapter.weight)->value).shape;
    const auto add = [&](std::string name, TensorSpec spec) {
      return copy_.builder().initializer(std::move(name), std::move(spec), InitializerRole::Parameter);
    };
    const ValueId a = add(adapter.a(), a_spec(adapter, shape));
    factors_[adapter.weight] = {a, add(adapter.b(), b_spec(adapter, shape))};
  }

  ValueId dropped(ValueId x, const Adapter& adapter, const Op& op) {
    if (!trains_ || adapter.dropout == 0) return x;
    return emit(OpKind::Dropout, {x}, {{Attr::Ratio, adapter.dropout}, {Attr::Key, key_++}}, op);
  }
  // Where there are fewest numbers.
  ValueId scaled(ValueId x, const Adapter& adapter, const Op& op) {
    if (adapter.scale() == 1) return x;
    return emit(OpKind::Mul, {x, copy_.builder().scalar(DType::F32, adapter.scale())}, {}, op);
  }
  ValueId product(ValueId x, bool trans_x, ValueId y, bool trans_y, const Op& op) {
    return emit(OpKind::MatMul, {x, y}, {{Attr::TransA, int64_t{trans_x}}, {Attr::TransB, int64_t{trans_y}}},
                op);
  }

  // The result of the op gets what the adapter makes of the same operand added.
  void add_beside(const Op& op, ValueId weight, const Adapter& adapter) {
    set_forward();
    const Factors factors = factors_.at(adapter.weight);
    ValueId more;
    if (op.kind == OpKind::Gather)
      more = look_up(op, adapter, factors);
    else if (op.kind == OpKind::Conv)
      more = convolve(op, adapter, factors);
    else
      more = op.inputs[0] == weight ? multiply_on_left(op, adapter, factors) : multiply(op, adapter, factors);
    const ValueId base = copy_.mapped(op.outputs[0]);
    copy_.builder().set_name(base, {});
    const ValueId sum = emit(OpKind::Add, {base, more}, {}, op);
    copy_.builder().set_name(sum, graph_.value(op.outputs[0]).name);
    copy_.map(op.outputs[0], sum);
  }

  // x W, or with a table that is multiplied x W^T: from its `out` to its `in`.
  ValueId multiply(const Op& op, const Adapter& adapter, const Factors& factors) {
    const bool forward = adapter.in_first != flag(op, Attr::TransB);
    const ValueId x = dropped(copy_.mapped(op.inputs[0]), adapter, op);
    const ValueId narrow = product(x, flag(op, Attr::TransA), forward ? factors.a : factors.b, forward, op);
    return product(scaled(narrow, adapter, op), false, forward ? factors.b : factors.a, forward, op);
  }
  // W x.
  ValueId multiply_on_left(const Op& op, const Adapter& adapter, const Factors& factors) {
    const bool forward = adapter.in_first == flag(op, Attr::TransA);
    const ValueId x = dropped(copy_.mapped(op.inputs[1]), adapter, op);
    const ValueId narrow = product(forward ? factors.a : factors.b, !forward, x, flag(op, Attr::TransB), op);
    return product(forward ? factors.b : factors.a, !forward, scaled(narrow, adapter, op), false, op);
  }
  ValueId look_up(const Op& op, const Adapter& adapter, const Factors& factors) {
    const ValueId rows = emit(OpKind::Transpose, {factors.a}, {{Attr::Perm, Ints{1, 0}}}, op);
    const ValueId narrow = emit(OpKind::Gather, {rows, copy_.mapped(op.inputs[1])}, op.attributes, op);
    return product(scaled(narrow, adapter, op), false, factors.b, true, op);
  }
  ValueId convolve(const Op& op, const Adapter& adapter, const Factors& factors) {
    const ValueId x = dropped(copy_.mapped(op.inputs[0]), adapter, op);
    const ValueId narrow = emit(OpKind::Conv, {x, factors.a}, op.attributes, op);
    const size_t dims = static_cast<size_t>(graph_.spec(op.inputs[0]).rank()) - 2;
    const Attributes plain{{Attr::Strides, Ints(dims, 1)},
                           {Attr::Dilations, Ints(dims, 1)},
                           {Attr::Pads, Ints(2 * dims, 0)},
                           {Attr::Groups, int64_t{1}}};
    return emit(OpKind::Conv, {scaled(narrow, adapter, op), factors.b}, plain, op);
  }

  const Graph& graph_;
  bool trains_;
  GraphCopy copy_;
  int64_t key_;
  std::map<uint32_t, const Adapter*> adapters_;  // by the weight's value
  std::map<std::string, Factors> factors_;       // values of the copy
};

Status check(const Graph& graph, const Adapter& adapter) {
  const TensorSpec& spec = graph.spec(graph.find_initializer(adapter.weight)->value);
  const auto [in, out] = sides(adapter, spec.shape);
  if (adapter.rank > std::min(in, out))
    return fail(ErrorCode::InvalidArgument, "rank " + std::to_string(adapter.rank) +
                                                " is larger than the smaller side of " +
                                                in_quotes(adapter.weight) + " " + to_string(spec) +
                                                ", and would save nothing; say a smaller `rank`, or " +
                                                "train the tensor whole (type: full)");
  if (graph.find_initializer(adapter.a()) || graph.find_initializer(adapter.b()))
    return fail(ErrorCode::InvalidArgument,
                in_quotes(adapter.weight) + " has an adapter already: two entries name it");
  return {};
}

}  // namespace

TensorSpec a_spec(const Adapter& adapter, const Shape& weight) {
  return factor_spec(adapter.rank, sides(adapter, weight).in, weight);
}
TensorSpec b_spec(const Adapter& adapter, const Shape& weight) {
  return factor_spec(sides(adapter, weight).out, adapter.rank, weight);
}

bool is_target(const Graph& graph, std::string_view pattern) {
  const Places places(graph);
  const auto initializers = graph.initializers();
  return std::any_of(initializers.begin(), initializers.end(),
                     [&](const Initializer& one) { return places.matches(one, pattern); });
}

Result<Adapted> adapt(const Graph& graph, const AdapterTerms& terms, bool trains, const OpTable& table) {
  const Places places(graph);
  Adapted adapted;
  std::vector<std::string> refused(terms.targets.size());  // the first that a pattern names in vain
  std::vector<bool> gives(terms.targets.size(), false);
  for (const Initializer& initializer : graph.initializers()) {
    std::vector<size_t> named;
    for (size_t i = 0; i < terms.targets.size(); ++i)
      if (places.matches(initializer, terms.targets[i])) named.push_back(i);
    if (named.empty()) continue;
    const std::string why = places.refuse(initializer);
    for (const size_t i : named) {
      gives[i] = gives[i] || why.empty();
      if (!why.empty() && refused[i].empty()) refused[i] = in_quotes(initializer.name) + ": " + why;
    }
    if (why.empty()) {
      adapted.adapters.push_back(places.adapter(initializer, terms));
      WEFT_TRY_STATUS(check(graph, adapted.adapters.back()));
    } else if (graph.spec(initializer.value).rank() > 1) {
      adapted.passed.push_back(in_quotes(initializer.name) + ": " + why);
    }
  }
  for (size_t i = 0; i < gives.size(); ++i)
    if (!gives[i])
      return fail(ErrorCode::InvalidArgument,
                  in_quotes(terms.targets[i]) +
                      " names nothing that an adapter can stand beside (matrices of MatMul, Gemm and Gather, "
                      "kernels of 1x1 convolutions)" +
                      (refused[i].empty() ? std::string() : "; " + refused[i]));
  adapted.graph = Adapting(graph, adapted.adapters, trains, table).run();
  return adapted;
}

Tensor merge(const Adapter& adapter, Tensor weight, const Tensor& a, const Tensor& b) {
  const auto [in, out] = sides(adapter, weight.shape());
  const auto rank = static_cast<size_t>(adapter.rank), columns = static_cast<size_t>(in);
  const std::span<const float> left = b.as<float>(), right = a.as<float>();
  if (weight.is_shared()) weight = Tensor(weight.spec(), weight.bytes());
  const std::span<float> w = weight.mutable_as<float>();
  std::vector<double> row(columns);
  for (size_t o = 0; o < static_cast<size_t>(out); ++o) {
    std::fill(row.begin(), row.end(), 0.0);
    for (size_t r = 0; r < rank; ++r)
      for (size_t i = 0; i < columns; ++i)
        row[i] += static_cast<double>(left[o * rank + r]) * static_cast<double>(right[r * columns + i]);
    for (size_t i = 0; i < columns; ++i) {
      const size_t at = adapter.in_first ? i * static_cast<size_t>(out) + o : o * columns + i;
      w[at] = static_cast<float>(static_cast<double>(w[at]) + adapter.scale() * row[i]);
    }
  }
  return weight;
}

}  // namespace weft::dag
