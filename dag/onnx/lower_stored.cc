// Weights that lie in fewer bits: initializers of the graph, or operands of the ops that read them.
#include "dag/onnx/lowering.h"

namespace weft::onnx {
namespace {

using dag::InitializerRole;

// x times the matrix, rows of it, or all of it, made by ops that read the parts.
Result<Item> read_parts(NodeContext& n, const StoredWeight& weight, std::vector<ValueId> inputs, OpKind kind,
                        bool turned) {
  Attributes attributes = weight.form.matrix.attributes();
  if (turned) attributes.set(Attr::TransB, int64_t{1});
  dag::GraphBuilder& builder = n.state().emitter.builder();
  auto made = builder.try_add(kind, std::move(inputs), std::move(attributes), n.name());
  if (!made) return fail(made.error());
  const Item wide{builder.spec(made->front()), made->front(), std::nullopt};
  return n.cast(wide, weight.dtype);
}

Status lower_product(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(3));
  const auto weight = n.stored_weight();
  if (!weight)
    return n.unsupported(
        "its matrix is no initializer in blocks of 4 or 8 bits that divide K, or it has an order of groups");
  Item y;
  if (n.keeps(*weight)) {
    WEFT_TRY(const Item whole, n.whole(*weight));
    WEFT_TRY(y, n.emit(OpKind::MatMul, {n.in(0), whole}, {{Attr::TransB, int64_t{1}}}));
  } else {
    WEFT_TRY(Item x, n.cast(n.in(0), DType::F32));
    WEFT_TRY(std::vector<ValueId> inputs, n.parts(*weight));
    inputs.insert(inputs.begin(), n.state().emitter.materialise(x));
    WEFT_TRY(y, read_parts(n, *weight, std::move(inputs), OpKind::StoredMatMul, /*turned=*/true));
  }
  if (!n.has(5)) return n.give(y);
  return n.give(n.emit(OpKind::Add, {y, n.in(5)}));
}

Status lower_rows(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(3));
  const auto weight = n.stored_weight();
  if (!weight) return n.unsupported("its table is no initializer of 4 or 8 bits, in blocks along its rows");
  if (n.keeps(*weight)) {
    WEFT_TRY(const Item whole, n.whole(*weight));
    return n.give(n.emit(OpKind::Gather, {whole, n.in(1)}, {{Attr::Axis, int64_t{0}}}));
  }
  WEFT_TRY(std::vector<ValueId> inputs, n.parts(*weight));
  inputs.resize(3);
  Item indices = n.in(1);
  inputs.push_back(n.state().emitter.materialise(indices));
  return n.give(read_parts(n, *weight, std::move(inputs), OpKind::StoredWeight, /*turned=*/false));
}

constexpr LowerRow kStoredRows[] = {
    {"MatMulNBits", lower_product, operands(0, 5)},
    {"GatherBlockQuantized", lower_rows, kNoOperand},
};

}  // namespace

std::span<const LowerRow> stored_lowerings() { return kStoredRows; }

std::optional<StoredWeight> NodeContext::stored_weight() {
  auto weight = stored_weight_of(state_.held, node_);
  if (!weight) return std::nullopt;
  // Halves, or a scale, that are trained have a gradient of their own.
  for (const dag::StoredForm::Part* part : {&weight->form.numbers, &weight->form.scale}) {
    const dag::Initializer* initializer = state_.emitter.builder().graph().find_initializer(part->name);
    if (options().training && initializer != nullptr && initializer->role == InitializerRole::Parameter)
      return std::nullopt;
  }
  return weight;
}

Result<Item> NodeContext::whole(const StoredWeight& weight) {
  if (!keeps(weight)) {
    WEFT_TRY(std::vector<ValueId> inputs, parts(weight));
    return read_parts(*this, weight, std::move(inputs), OpKind::StoredWeight, /*turned=*/false);
  }
  if (const auto found = state_.whole.find(weight.name); found != state_.whole.end()) return found->second;
  const dag::StoredMatrix& matrix = weight.form.matrix;
  const TensorSpec spec{weight.dtype, {matrix.rows, matrix.columns}};
  if (state_.emitter.builder().graph().find_initializer(weight.name) != nullptr)
    return invalid("the name '" + weight.name.substr(0, 128) + "' is that of another initializer");
  const ValueId id = state_.emitter.builder().initializer(weight.name, spec, InitializerRole::Frozen);
  state_.stored[weight.name] = weight.form;
  return state_.whole[weight.name] = Item{spec, id, std::nullopt, weight.name};
}

Result<std::vector<ValueId>> NodeContext::parts(const StoredWeight& weight) {
  std::vector<ValueId> values;
  dag::GraphBuilder& builder = state_.emitter.builder();
  for (const dag::StoredForm::Part* part : {&weight.form.numbers, &weight.form.scale, &weight.form.zero}) {
    if (part->name.empty()) continue;
    auto found = state_.stored_parts.find(part->name);
    if (found == state_.stored_parts.end()) {
      const dag::Initializer* there = builder.graph().find_initializer(part->name);
      const InitializerRole role =
          is_float(part->spec.dtype) ? InitializerRole::Frozen : InitializerRole::Buffer;
      const ValueId id = there != nullptr ? there->value : builder.initializer(part->name, part->spec, role);
      found = state_.stored_parts.emplace(part->name, id).first;
    }
    values.push_back(found->second);
  }
  return values;
}

}  // namespace weft::onnx
