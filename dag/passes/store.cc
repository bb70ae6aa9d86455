#include "dag/passes/store.h"

#include <algorithm>
#include <set>
#include <vector>

namespace weft::dag {
namespace {

enum class Use { Product, Rows, Other };

// How an op reads the weight.
Use use_of(const Graph& graph, const Op& op, ValueId weight) {
  if (std::count(op.inputs.begin(), op.inputs.end(), weight) != 1) return Use::Other;
  if (op.kind == OpKind::MatMul && op.inputs[1] == weight && op.attributes.get_int(Attr::TransA) == 0 &&
      graph.spec(op.inputs[0]).dtype == DType::F32)
    return Use::Product;
  if (op.kind == OpKind::Gather && op.inputs[0] == weight && op.attributes.get_int(Attr::Axis) == 0)
    return Use::Rows;
  return Use::Other;
}

class Storing {
 public:
  Storing(const Graph& graph, const StoredForms& forms, const OpTable& table)
      : graph_(graph), copy_(graph, table) {
    for (const auto& [name, form] : forms) forms_[graph.find_initializer(name)->value.index] = &form;
  }

  Graph run() {
    for (uint32_t i = 0; i < graph_.ops().size(); ++i) {
      const Op& op = graph_.ops()[i];
      if (op.kind == OpKind::Initializer) {
        add_initializer(OpId{i});
        continue;
      }
      const auto reads = [&](ValueId v) { return v.valid() && tensors_.contains(v.index); };
      const auto read = std::find_if(op.inputs.begin(), op.inputs.end(), reads);
      if (read == op.inputs.end())
        copy_.copy(OpId{i});
      else
        read_stored(OpId{i}, *read);
    }
    for (const GraphOutput& output : graph_.outputs())
      if (tensors_.contains(output.value.index)) widen(output.value);
    copy_.copy_outputs();
    return copy_.finish();
  }

 private:
  // Of the copy: numbers, scale, zero.
  using Operands = std::vector<ValueId>;

  void add_initializer(OpId id) {
    const ValueId value = graph_.op(id).outputs[0];
    if (copied_.contains(value.index)) return;
    const auto found = forms_.find(value.index);
    if (found == forms_.end()) {
      copied_.insert(value.index);
      return copy_.copy(id);
    }
    const StoredForm& form = *found->second;
    Operands operands{add(form.numbers)};
    if (!form.matrix.is_half()) operands.push_back(add(form.scale));
    if (form.matrix.has_zero) operands.push_back(add(form.zero));
    tensors_[found->first] = std::move(operands);
  }
  // Two matrices may share a scale.
  ValueId add(const StoredForm::Part& part) {
    if (const auto found = added_.find(part.name); found != added_.end()) return found->second;
    // Whatever else reads it reads the same.
    const Initializer* there = graph_.find_initializer(part.name);
    if (there != nullptr && !forms_.contains(there->value.index)) {
      if (copied_.insert(there->value.index).second) copy_.copy(graph_.value(there->value).producer);
      return added_[part.name] = copy_.mapped(there->value);
    }
    const InitializerRole role =
        is_float(part.spec.dtype) ? InitializerRole::Frozen : InitializerRole::Buffer;
    set_forward();
    return added_[part.name] = copy_.builder().initializer(part.name, part.spec, role);
  }
  void set_forward() {
    copy_.builder().set_phase(Phase::Forward);
    copy_.builder().set_origin({});
  }

  void read_stored(OpId id, ValueId weight) {
    const Op& op = graph_.op(id);
    const StoredForm& form = *forms_.at(weight.index);
    const Operands& operands = tensors_.at(weight.index);
    const Use use = use_of(graph_, op, weight);
    set_forward();
    Attributes attributes = form.matrix.attributes();
    if (use == Use::Product) {
      attributes.set(Attr::TransB, op.attributes.get_int(Attr::TransB));
      Operands inputs = operands;
      inputs.insert(inputs.begin(), copy_.mapped(op.inputs[0]));
      take_over(op,
                copy_.builder().add(OpKind::StoredMatMul, std::move(inputs), std::move(attributes), op.name));
    } else if (use == Use::Rows) {
      Operands inputs = operands;
      inputs.resize(3);
      inputs.push_back(copy_.mapped(op.inputs[1]));
      take_over(op,
                copy_.builder().add(OpKind::StoredWeight, std::move(inputs), std::move(attributes), op.name));
    } else {
      for (const ValueId input : op.inputs)
        if (input.valid() && tensors_.contains(input.index)) widen(input);
      copy_.copy(id);
    }
  }
  void take_over(const Op& op, ValueId value) {
    copy_.builder().set_name(value, graph_.value(op.outputs[0]).name);
    copy_.map(op.outputs[0], value);
  }
  void widen(ValueId weight) {
    set_forward();
    copy_.map(weight, copy_.builder().add(OpKind::StoredWeight, tensors_.at(weight.index),
                                          forms_.at(weight.index)->matrix.attributes()));
  }

  const Graph& graph_;
  GraphCopy copy_;
  std::map<uint32_t, const StoredForm*> forms_;  // by value
  std::map<uint32_t, Operands> tensors_;         // by value of those that the copy has
  std::map<std::string, ValueId> added_;
  std::set<uint32_t> copied_;  // initializers, by value
};

}  // namespace

StoredForms worth_storing(const Graph& graph, StoredForms forms) {
  const std::vector<std::vector<OpId>> users = graph.users();
  std::erase_if(forms, [&](const auto& entry) {
    const Initializer* initializer = graph.find_initializer(entry.first);
    if (initializer == nullptr || initializer->role != InitializerRole::Frozen) return true;
    if (graph.spec(initializer->value) !=
        TensorSpec{DType::F32, {entry.second.matrix.rows, entry.second.matrix.columns}})
      return true;
    const bool has_tensor =
        entry.second.numbers.name == entry.first;  // of its own, which float32 can be made of
    if (!entry.second.matrix.is_half() || !has_tensor) return false;
    const auto& readers = users[initializer->value.index];
    const bool is_output =
        std::any_of(graph.outputs().begin(), graph.outputs().end(),
                    [&](const GraphOutput& output) { return output.value == initializer->value; });
    return readers.empty() || is_output || std::any_of(readers.begin(), readers.end(), [&](OpId reader) {
             return use_of(graph, graph.op(reader), initializer->value) == Use::Other;
           });
  });
  return forms;
}

Graph store(const Graph& graph, const StoredForms& forms, const OpTable& table) {
  return forms.empty() ? graph : Storing(graph, forms, table).run();
}

}  // namespace weft::dag
