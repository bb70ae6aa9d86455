#include <algorithm>
#include <bit>

#include "dag/onnx/lowering.h"

namespace weft::onnx {
namespace {

constexpr int64_t kComparedBytesMax =
    256;  // constants up to this size are equal by content, larger ones by address

std::string address_key(const Tensor& tensor) {
  return to_string(tensor.spec()) + "@" + std::to_string(std::bit_cast<uintptr_t>(tensor.bytes().data()));
}

std::string content_key(const Tensor& tensor) {
  const auto bytes = tensor.bytes();
  return to_string(tensor.spec()) + "=" +
         std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace

Result<std::vector<TensorSpec>> Emitter::infer(OpKind kind, const Items& inputs, const Attributes& attributes,
                                               const std::string& name) const {
  const dag::OpRow& row = table_.row(kind);
  std::vector<const TensorSpec*> specs;
  specs.reserve(inputs.size());
  for (const Item& input : inputs) specs.push_back(input.absent() ? nullptr : &input.spec);
  const int count = static_cast<int>(inputs.size());
  if (count < row.inputs_min || count > row.inputs_max)
    return fail(ErrorCode::InvalidArgument,
                std::string(to_string(kind)) + " '" + name + "' has " + std::to_string(count) + " operands");
  for (int i = 0; i < row.inputs_min; ++i)
    if (!specs[static_cast<size_t>(i)])
      return fail(ErrorCode::InvalidArgument, std::string(to_string(kind)) + " '" + name + "': operand " +
                                                  std::to_string(i) + " is missing");
  auto outputs = row.infer(dag::ShapeContext{specs, attributes});
  if (!outputs) return outputs;
  for (const TensorSpec& spec : *outputs) {
    WEFT_TRY_STATUS(dag::checked_element_count(spec.shape));
    if (spec.bytes().value > options_.limits.value_bytes_max)
      return fail(ErrorCode::ResourceExhausted,
                  "a value of " + to_string(spec) + " would take " + std::to_string(spec.bytes().value) +
                      " bytes; at most " + std::to_string(options_.limits.value_bytes_max) + " are accepted");
  }
  return outputs;
}

int64_t Emitter::fold_work(OpKind kind, const Items& inputs, const Attributes& attributes,
                           const std::vector<TensorSpec>& outputs) const {
  int64_t work = 0;
  std::vector<const TensorSpec*> specs;
  for (const Item& input : inputs) {
    if (!input.absent()) work += input.spec.element_count();
    specs.push_back(input.absent() ? nullptr : &input.spec);
  }
  for (const TensorSpec& output : outputs) work += output.element_count();
  const dag::OpRow& row = table_.row(kind);
  const int64_t flops = row.flops ? row.flops(dag::ShapeContext{specs, attributes}, outputs).value : 0;
  return std::max(work, flops);
}

Result<std::optional<Items>> Emitter::fold(OpKind kind, const Items& inputs, const Attributes& attributes,
                                           const std::vector<TensorSpec>& specs) {
  int64_t bytes = 0;
  for (const TensorSpec& spec : specs) bytes += spec.bytes().value;
  if (bytes > options_.limits.folded_value_bytes_max) return std::nullopt;

  std::string key = std::string(to_string(kind)) + " " + to_string(attributes);
  std::vector<const Tensor*> operands;
  for (const Item& input : inputs) {
    if (input.absent()) {
      key += " absent";
      operands.push_back(nullptr);
      continue;
    }
    key += " " + (input.spec.bytes().value <= kComparedBytesMax ? content_key(*input.known)
                                                                : address_key(*input.known));
    operands.push_back(&*input.known);
  }
  if (const auto found = folded_.find(key); found != folded_.end()) return found->second.outputs;
  if (folded_bytes_ + bytes > options_.limits.folded_bytes_max) return std::nullopt;

  const int64_t work = fold_work(kind, inputs, attributes, specs);
  if (work > options_.limits.folded_flop_count_max - folded_work_) return std::nullopt;
  folded_work_ += work;

  dag::Op op;
  op.kind = kind;
  op.attributes = attributes;
  WEFT_TRY(auto tensors, options_.evaluate(op, operands, specs));
  folded_bytes_ += bytes;
  Items outputs;
  for (Tensor& tensor : tensors) outputs.push_back(constant(std::move(tensor)));
  folded_.emplace(std::move(key), Folded{inputs, outputs});
  return outputs;
}

Result<Items> Emitter::emit_all(OpKind kind, Items inputs, Attributes attributes, const std::string& name) {
  bool all_known = !table_.row(kind).draws;
  for (const Item& input : inputs) all_known = all_known && (input.known || input.absent());
  WEFT_TRY(const auto specs, infer(kind, inputs, attributes, name));
  if (all_known) {
    WEFT_TRY(auto folded, fold(kind, inputs, attributes, specs));
    if (folded) return std::move(*folded);
  }
  std::vector<ValueId> ids;
  ids.reserve(inputs.size());
  for (Item& input : inputs) ids.push_back(materialise(input));
  WEFT_TRY(const auto values, builder_.try_add(kind, std::move(ids), std::move(attributes), name));
  Items outputs;
  for (size_t i = 0; i < values.size(); ++i) outputs.push_back({specs[i], values[i], std::nullopt, {}});
  return outputs;
}

Status Emitter::charge(int64_t bytes) {
  made_bytes_ += bytes;
  if (made_bytes_ <= options_.limits.made_bytes_max) return {};
  return fail(ErrorCode::ResourceExhausted,
              "the constants that the model's nodes make would take more than " +
                  std::to_string(options_.limits.made_bytes_max) + " bytes");
}

ValueId Emitter::materialise(Item& item) {
  if (item.id.valid() || item.absent()) return item.id;
  const bool small = item.initializer.empty() && item.spec.bytes().value <= kComparedBytesMax;
  const std::string key = !item.initializer.empty() ? "initializer " + item.initializer
                          : small                   ? content_key(*item.known)
                                                    : address_key(*item.known);
  auto [entry, is_new] = leaves_.try_emplace(key);
  if (is_new) {
    if (!item.initializer.empty()) {
      // Where a stored weight is made of it, it is there already.
      const dag::Initializer* there = builder_.graph().find_initializer(item.initializer);
      entry->second = there != nullptr
                          ? there->value
                          : builder_.initializer(item.initializer, item.spec, dag::InitializerRole::Buffer);
    } else {
      entry->second = builder_.constant(*item.known);
      if (!small) kept_.push_back(*item.known);
    }
  }
  item.id = entry->second;
  return item.id;
}

}  // namespace weft::onnx
