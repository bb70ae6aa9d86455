#include <algorithm>
#include <cmath>

#include "dag/onnx/lowering.h"

namespace weft::onnx {

tl::unexpected<Error> NodeContext::refuse(ErrorCode code, const std::string& why) const {
  return fail(code, op_type() + " '" + name().substr(0, 128) + "': " + why);
}

const Item& NodeContext::in(size_t i) const {
  static const Item kAbsent;
  return i < inputs_.size() ? inputs_[i] : kAbsent;
}

Status NodeContext::need(size_t operands) const {
  for (size_t i = 0; i < operands; ++i)
    if (!has(i)) return invalid("operand " + std::to_string(i) + " is missing");
  if (output_count() == 0) return invalid("it has no output");
  return {};
}

std::string NodeContext::literal_batch_cure(int64_t count) const {
  if (!state_.batch || count < 1 || count == *state_.batch) return {};
  const std::string size = std::to_string(count);
  return "the model writes its batch down as " + size + " in " + op_type() + " '" + name().substr(0, 128) +
         "': set microbatch_size: " + size + ", or export it with a batch that is not fixed there";
}

Result<Ints> NodeContext::ints(size_t i, const char* what) const {
  const Item& item = in(i);
  if (item.absent()) return invalid("operand " + std::to_string(i) + " (its " + what + ") is missing");
  if (!item.known)
    return unsupported(std::string("its ") + what +
                       " depends on data that is only known when the model runs");
  if (item.rank() > 1) return invalid(std::string("its ") + what + " has shape " + to_string(item.shape()));
  if (item.spec.element_count() > 4096) return invalid(std::string("its ") + what + " has too many entries");
  if (item.known->dtype() == DType::Bool || is_float(item.known->dtype())) {
    for (const double value : to_doubles(*item.known))
      if (!std::isfinite(value)) return invalid(std::string("its ") + what + " is not finite");
  }
  return to_int64s(*item.known);
}

Result<int64_t> NodeContext::one_int(size_t i, const char* what) const {
  WEFT_TRY(const Ints values, ints(i, what));
  if (values.size() != 1) return invalid(std::string("its ") + what + " is not a single number");
  return values[0];
}

const pb::AttributeProto* NodeContext::find(std::string_view name) const {
  for (const auto& attribute : node_.attribute())
    if (attribute.name() == name) return &attribute;
  return nullptr;
}

const pb::AttributeProto* NodeContext::find(std::string_view name, pb::AttributeProto::AttributeType type) {
  const auto* attribute = find(name);
  if (!attribute || attribute->type() == type) return attribute;
  // IR version 1 files leave the type out.
  if (attribute->type() == pb::AttributeProto::UNDEFINED) return attribute;
  attribute_status_ = invalid("attribute '" + std::string(name) + "' has the wrong type");
  return nullptr;
}

int64_t NodeContext::int_attr(std::string_view name, int64_t otherwise) {
  const auto* attribute = find(name, pb::AttributeProto::INT);
  return attribute ? attribute->i() : otherwise;
}

double NodeContext::float_attr(std::string_view name, double otherwise) {
  const auto* attribute = find(name, pb::AttributeProto::FLOAT);
  if (!attribute) return otherwise;
  const double value = static_cast<double>(attribute->f());
  if (!std::isfinite(value))
    attribute_status_ = invalid("attribute '" + std::string(name) + "' is not finite");
  return value;
}

std::string NodeContext::string_attr(std::string_view name, std::string otherwise) {
  const auto* attribute = find(name, pb::AttributeProto::STRING);
  if (attribute != nullptr) otherwise = attribute->s();
  return otherwise;
}

Ints NodeContext::ints_attr(std::string_view name) {
  const auto* attribute = find(name, pb::AttributeProto::INTS);
  if (!attribute) return {};
  if (attribute->ints_size() > 4096) {
    attribute_status_ = invalid("attribute '" + std::string(name) + "' has too many entries");
    return {};
  }
  return {attribute->ints().begin(), attribute->ints().end()};
}

std::vector<double> NodeContext::floats_attr(std::string_view name) {
  const auto* attribute = find(name, pb::AttributeProto::FLOATS);
  if (!attribute) return {};
  return {attribute->floats().begin(), attribute->floats().end()};
}

std::vector<std::string> NodeContext::strings_attr(std::string_view name) {
  const auto* attribute = find(name, pb::AttributeProto::STRINGS);
  if (!attribute) return {};
  return {attribute->strings().begin(), attribute->strings().end()};
}

const pb::TensorProto* NodeContext::tensor_attr(std::string_view name) {
  const auto* attribute = find(name, pb::AttributeProto::TENSOR);
  return attribute ? &attribute->t() : nullptr;
}

const pb::GraphProto* NodeContext::graph_attr(std::string_view name) {
  const auto* attribute = find(name, pb::AttributeProto::GRAPH);
  return attribute ? &attribute->g() : nullptr;
}

Result<Item> NodeContext::large_constant(Tensor tensor) {
  if (const auto charged = state_.emitter.charge(tensor.spec().bytes().value); !charged)
    return refuse(charged.error().code, charged.error().message);
  return constant(std::move(tensor));
}

Result<int64_t> NodeContext::axis_attr(std::string_view name, int64_t otherwise, int64_t rank) {
  const auto axis = dag::normalise_axis(int_attr(name, otherwise), rank);
  if (!axis) return invalid(axis.error().message);
  return *axis;
}

bool NodeContext::wants(size_t i) const {
  if (i >= outputs_.size()) return false;
  const std::string& output = node_.output(static_cast<int>(i));
  return !output.empty() && state_.use_counts.contains(output);
}

Status NodeContext::give(Result<Item> item) {
  if (!item) return fail(std::move(item).error());
  out(0, std::move(*item));
  return {};
}

Result<Items> NodeContext::emit_all(OpKind kind, Items inputs, Attributes attributes) {
  WEFT_TRY_STATUS(attribute_status_);
  auto outputs = state_.emitter.emit_all(kind, std::move(inputs), std::move(attributes), name());
  if (!outputs) {
    const std::string prefix = op_type() + " '";
    if (outputs.error().message.starts_with(prefix)) return outputs;
    return refuse(outputs.error().code, outputs.error().message);
  }
  return outputs;
}

Result<Item> NodeContext::emit(OpKind kind, Items inputs, Attributes attributes) {
  WEFT_TRY(Items outputs, emit_all(kind, std::move(inputs), std::move(attributes)));
  return std::move(outputs.front());
}

Result<Item> NodeContext::reshape(const Item& x, Shape shape) {
  if (x.shape() == shape) return x;
  return emit(OpKind::Reshape, {x}, {{Attr::Shape, std::move(shape)}});
}

Result<Item> NodeContext::transpose(const Item& x, Ints perm) {
  bool moves = false;
  for (size_t i = 0; i < perm.size(); ++i) moves = moves || perm[i] != static_cast<int64_t>(i);
  if (!moves && static_cast<int64_t>(perm.size()) == x.rank()) return x;
  return emit(OpKind::Transpose, {x}, {{Attr::Perm, std::move(perm)}});
}

Result<Item> NodeContext::expand(const Item& x, Shape shape) {
  if (x.shape() == shape) return x;
  return emit(OpKind::Expand, {x}, {{Attr::Shape, std::move(shape)}});
}

Result<Item> NodeContext::cast(const Item& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return emit(OpKind::Cast, {x}, {{Attr::DType, static_cast<int64_t>(dtype)}});
}

Result<Item> NodeContext::slice(const Item& x, int64_t axis, int64_t start, int64_t size, int64_t step) {
  Ints starts(x.shape().size(), 0);
  Ints sizes = x.shape();
  Ints steps(x.shape().size(), 1);
  const auto i = static_cast<size_t>(axis);
  if (start == 0 && size == sizes[i] && step == 1) return x;
  starts[i] = start;
  sizes[i] = size;
  steps[i] = step;
  return emit(OpKind::Slice, {x}, {{Attr::Starts, starts}, {Attr::Sizes, sizes}, {Attr::Steps, steps}});
}

Result<Item> NodeContext::reduce(OpKind kind, const Item& x, Ints axes, bool keep_dims) {
  return emit(kind, {x}, {{Attr::Axes, std::move(axes)}, {Attr::KeepDims, int64_t{keep_dims ? 1 : 0}}});
}

namespace {
// Calls visit(row) for the rows of a domain until it returns true.
template <typename Visit>
const LowerRow* visit_rows(std::string_view domain, Visit visit) {
  const auto search = [&](std::span<const LowerRow> rows) -> const LowerRow* {
    for (const LowerRow& row : rows)
      if (visit(row)) return &row;
    return nullptr;
  };
  if (domain == "com.microsoft") {
    const LowerRow* row = search(microsoft_lowerings());
    return row != nullptr ? row : search(stored_lowerings());
  }
  if (!domain.empty() && domain != "ai.onnx") return nullptr;
  for (const auto rows :
       {elementwise_lowerings(),   activation_lowerings(), shape_lowerings(),       index_lowerings(),
        reduction_lowerings(),     matmul_lowerings(),     convolution_lowerings(), pooling_lowerings(),
        normalisation_lowerings(), softmax_lowerings(),    generator_lowerings(),   random_lowerings(),
        recurrent_lowerings(),     sampling_lowerings(),   scatter_lowerings(),     attention_lowerings(),
        quantisation_lowerings(),  signal_lowerings(),     control_lowerings(),     sequence_lowerings(),
        state_lowerings()})
    if (const LowerRow* row = search(rows)) return row;
  return nullptr;
}
}  // namespace

const LowerRow* find_lowering(std::string_view domain, std::string_view op_type) {
  return visit_rows(domain, [&](const LowerRow& row) { return row.op_type == op_type; });
}

std::vector<std::string> imported_operators(std::string_view domain) {
  std::vector<std::string> names;
  visit_rows(domain, [&](const LowerRow& row) {
    names.emplace_back(row.op_type);
    return false;
  });
  std::sort(names.begin(), names.end());
  return names;
}

std::span<const RefusedOperators> refused_operators() {
  static constexpr RefusedOperators kRefused[] = {
      {"StringNormalizer StringConcat StringSplit RegexFullMatch TfIdfVectorizer LabelEncoder",
       "strings are no numbers"},
      {"Optional OptionalGetElement OptionalHasElement SequenceMap",
       "optionals and functions over sequences; sequences themselves pass between nodes, not in or out of a "
       "model"},
      {"Gradient Adam Adagrad Momentum", "training is what weft adds; export the forward model"},
      {"ImageDecoder", "images are decoded before they become data"},
  };
  return kRefused;
}

std::string_view why_refused(std::string_view op_type) {
  for (const RefusedOperators& refused : refused_operators())
    for (size_t at = 0, end = 0; at < refused.names.size(); at = end + 1) {
      end = std::min(refused.names.find(' ', at), refused.names.size());
      if (refused.names.substr(at, end - at) == op_type) return refused.reason;
    }
  return {};
}

}  // namespace weft::onnx
