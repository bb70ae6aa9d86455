#include "dag/incremental/incremental.h"

#include "dag/incremental/emit.h"
#include "dag/incremental/free_values.h"

namespace weft::dag {

using incremental::Analysis;
using incremental::Parts;

TensorSpec CacheSpec::with(int64_t capacity) const {
  Shape whole = shape;
  whole.insert(whole.begin() + static_cast<std::ptrdiff_t>(axis), capacity);
  return {dtype, std::move(whole)};
}
Bytes CacheSpec::bytes_a_position() const { return TensorSpec{dtype, shape}.bytes(); }

struct Incremental::Impl {
  std::shared_ptr<const Graph> graph;
  const OpTable* table = nullptr;
  Analysis analysis;
  Parts parts;
  ValueId tokens, logits;
  std::vector<PartInterface> interfaces;  // by part
};

Incremental::Incremental(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Incremental::~Incremental() = default;
Incremental::Incremental(Incremental&&) noexcept = default;
Incremental& Incremental::operator=(Incremental&&) noexcept = default;

namespace {

Result<ValueId> find_tokens(const Graph& graph, const std::string& name) {
  for (const ValueId input : graph.inputs()) {
    if (graph.producer(input).attributes.get_string(Attr::Name) != name) continue;
    const DType dtype = graph.spec(input).dtype;
    if (dtype == DType::I64 || dtype == DType::I32) return input;
    return fail(ErrorCode::Unsupported,
                "input '" + name.substr(0, 128) + "' is " + to_string(graph.spec(input)) + ", no tokens");
  }
  return fail(ErrorCode::NotFound, "the model has no input '" + name.substr(0, 128) + "'");
}

Result<ValueId> find_logits(const Graph& graph, const std::string& name) {
  for (const GraphOutput& output : graph.outputs())
    if (output.role == OutputRole::Prediction && (name.empty() || output.name == name)) return output.value;
  return fail(ErrorCode::NotFound, "the model has no output '" + name.substr(0, 128) + "'");
}

// Computes free values op by op, the largest table last; keeps nothing.
class Folder {
 public:
  Folder(const Graph& graph, const IncrementalOptions& options) : graph_(graph), options_(options) {}

  Result<Tensor> operator()(ValueId value) const {
    std::map<ValueId, Tensor> made;
    std::vector<std::pair<ValueId, bool>> left{{value, false}};
    while (!left.empty()) {
      const auto [at, ready] = left.back();
      left.pop_back();
      if (made.contains(at)) continue;
      const Op& op = graph_.producer(at);
      if (op.inputs.empty()) {
        WEFT_TRY(made[at], leaf(op));
      } else if (ready) {
        WEFT_TRY_STATUS(compute(op, made));
      } else {
        left.push_back({at, true});
        for (const ValueId input : op.inputs)
          if (input.valid()) left.push_back({input, false});
      }
    }
    return made.at(value);
  }

 private:
  Result<Tensor> leaf(const Op& op) const {
    if (op.kind == OpKind::Constant) return graph_.constant(op);
    const std::string& name = op.attributes.get_string(Attr::Name);
    if (options_.weights != nullptr)
      if (const auto weight = options_.weights->find(name); weight != options_.weights->end())
        return weight->second;
    return fail(ErrorCode::Unsupported, "a mask hangs on '" + name.substr(0, 128) + "', of which no value is known");
  }
  Status compute(const Op& op, std::map<ValueId, Tensor>& made) const {
    std::vector<const Tensor*> inputs;
    std::vector<TensorSpec> outputs;
    for (const ValueId input : op.inputs) inputs.push_back(input.valid() ? &made.at(input) : nullptr);
    for (const ValueId output : op.outputs) outputs.push_back(graph_.spec(output));
    WEFT_TRY(std::vector<Tensor> results, options_.evaluate(op, inputs, outputs));
    for (size_t i = 0; i < results.size(); ++i) made[op.outputs[i]] = std::move(results[i]);
    return {};
  }

  const Graph& graph_;
  const IncrementalOptions& options_;
};

PartInterface interface_of(const Analysis& analysis, const Parts::Interface& of_values) {
  PartInterface interface;
  for (const ValueId value : of_values.inputs)
    interface.inputs.push_back(incremental::row_spec(analysis, value));
  for (const ValueId value : of_values.outputs)
    interface.outputs.push_back(incremental::row_spec(analysis, value));
  for (const ValueId value : of_values.caches)
    interface.caches.push_back(incremental::cache_spec(analysis, value));
  return interface;
}

}  // namespace

Result<Incremental> Incremental::derive(std::shared_ptr<const Graph> graph, const OpTable& table,
                                        const IncrementalOptions& options) {
  auto impl = std::make_unique<Impl>();
  WEFT_TRY(impl->tokens, find_tokens(*graph, options.tokens));
  WEFT_TRY(impl->logits, find_logits(*graph, options.logits));
  WEFT_TRY(impl->analysis, incremental::analyse(*graph, impl->tokens, Folder(*graph, options)));
  const incremental::Trait& logits = impl->analysis.values[impl->logits.index];
  if (logits.free || logits.is_pair())
    return fail(ErrorCode::Unsupported, "the output '" + options.logits + "' is not one row a token");
  WEFT_TRY(impl->parts, incremental::make_parts(impl->analysis, impl->tokens, impl->logits));
  for (const Parts::Interface& interface : impl->parts.interfaces)
    impl->interfaces.push_back(interface_of(impl->analysis, interface));
  impl->graph = std::move(graph);
  impl->table = &table;
  return Incremental(std::move(impl));
}

Weights Incremental::tables() const {
  Weights tables;
  for (const Op& op : impl_->graph->ops())
    if (incremental::is_table(*impl_->graph, op))
      tables.emplace(incremental::table_name(op.outputs[0]), impl_->graph->constant(op));
  return tables;
}

int64_t Incremental::context() const { return impl_->analysis.length; }
size_t Incremental::row_parts() const { return impl_->parts.count / 2 + 1; }
const PartInterface& Incremental::row_part(size_t part) const { return impl_->interfaces[2 * part]; }
const PartInterface& Incremental::attending_part(size_t part) const { return impl_->interfaces[2 * part + 1]; }
RowSpec Incremental::tokens() const { return incremental::row_spec(impl_->analysis, impl_->tokens); }
RowSpec Incremental::logits() const { return incremental::row_spec(impl_->analysis, impl_->logits); }

Graph Incremental::rows(size_t part, int64_t rows) const {
  return incremental::emit_part(impl_->analysis, impl_->parts, static_cast<uint32_t>(2 * part),
                                {rows, context()}, *impl_->table);
}
Graph Incremental::attending(size_t part, int64_t rows, int64_t capacity) const {
  return incremental::emit_part(impl_->analysis, impl_->parts, static_cast<uint32_t>(2 * part + 1),
                                {rows, capacity}, *impl_->table);
}

}  // namespace weft::dag
