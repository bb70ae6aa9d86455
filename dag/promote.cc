#include "dag/promote.h"

namespace weft::dag {
namespace {
TensorSpec promoted(TensorSpec spec) {
  if (is_float(spec.dtype)) spec.dtype = DType::F64;
  return spec;
}
}  // namespace

Tensor promote_to_f64(const Tensor& tensor) {
  return is_float(tensor.dtype()) ? from_doubles(promoted(tensor.spec()), to_doubles(tensor)) : tensor;
}

Graph promote_to_f64(const Graph& graph, const OpTable& table) {
  GraphBuilder builder(table);
  std::vector<ValueId> map(graph.values().size());
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = graph.op(OpId{i});
    builder.set_phase(op.phase);
    builder.set_origin(op.origin.index == i ? OpId{} : op.origin);  // ids stay what they are
    std::vector<ValueId> outputs;
    if (op.kind == OpKind::Input) {
      outputs = {builder.input(op.attributes.get_string(Attr::Name), promoted(graph.spec(op.outputs[0])),
                               graph.input_role(op.outputs[0]))};
    } else if (op.kind == OpKind::Initializer) {
      const Initializer* initializer = graph.find_initializer(op.attributes.get_string(Attr::Name));
      outputs = {
          builder.initializer(initializer->name, promoted(graph.spec(op.outputs[0])), initializer->role)};
    } else if (op.kind == OpKind::Constant) {
      outputs = {builder.constant(promote_to_f64(graph.constant(op)), op.name)};
    } else {
      Attributes attributes = op.attributes;
      if (op.kind == OpKind::Cast && is_float(static_cast<DType>(attributes.get_int(Attr::DType))))
        attributes.set(Attr::DType, static_cast<int64_t>(DType::F64));
      std::vector<ValueId> inputs;
      inputs.reserve(op.inputs.size());
      for (const ValueId input : op.inputs) inputs.push_back(input.valid() ? map[input.index] : input);
      outputs = builder.add_all(op.kind, std::move(inputs), std::move(attributes), op.name);
    }
    for (size_t k = 0; k < outputs.size(); ++k) map[op.outputs[k].index] = outputs[k];
  }
  for (const auto& output : graph.outputs())
    builder.output(output.name, map[output.value.index], output.role);
  return builder.finish();
}

}  // namespace weft::dag
