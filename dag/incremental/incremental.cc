#include "dag/incremental/incremental.h"

#include "dag/incremental/emit.h"
#include "dag/incremental/folder.h"
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
  std::vector<std::string> read;
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
  incremental::Folder folder(*graph, options);
  const auto fold = [&folder](ValueId value) { return folder.fold(value); };
  WEFT_TRY(impl->analysis, incremental::analyse(*graph, impl->tokens, fold));
  const incremental::Trait& logits = impl->analysis.values[impl->logits.index];
  if (logits.free || logits.is_pair())
    return fail(ErrorCode::Unsupported, "the output '" + options.logits + "' is not one row a token");
  WEFT_TRY(impl->parts, incremental::make_parts(impl->analysis, impl->tokens, impl->logits));
  for (const Parts::Interface& interface : impl->parts.interfaces)
    impl->interfaces.push_back(interface_of(impl->analysis, interface));
  impl->read.assign(folder.read().begin(), folder.read().end());
  impl->graph = std::move(graph);
  impl->table = &table;
  return Incremental(std::move(impl));
}

const std::vector<std::string>& Incremental::read_weights() const { return impl_->read; }

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
const PartInterface& Incremental::attending_part(size_t part) const {
  return impl_->interfaces[2 * part + 1];
}
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
