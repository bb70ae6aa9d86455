#include "dag/onnx/edit.h"

#include <algorithm>

#include "dag/onnx/parse.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {

void remove_initializers(OnnxModel::Structure& model, const std::set<std::string>& names) {
  pb::GraphProto& graph = *model.proto.mutable_graph();
  auto& initializers = *graph.mutable_initializer();
  std::vector<OnnxModel::Structure::Form> forms;
  for (int i = 0; i < initializers.size(); ++i)
    if (!names.contains(initializers[i].name())) forms.push_back(model.forms[static_cast<size_t>(i)]);
  model.forms = std::move(forms);
  const auto is_named = [&](const auto& proto) { return names.contains(proto.name()); };
  initializers.erase(std::remove_if(initializers.begin(), initializers.end(), is_named), initializers.end());
  auto& inputs = *graph.mutable_input();
  const auto is_initializer = [&](const auto& input) {
    return is_named(input) && model.weights.contains(input.name());
  };
  inputs.erase(std::remove_if(inputs.begin(), inputs.end(), is_initializer), inputs.end());
  for (const std::string& name : names) {
    model.weights.erase(name);
    model.unread.erase(name);
  }
}

Status add_initializer(OnnxModel::Structure& model, const std::string& name, const dag::TensorSpec& spec,
                       bool external) {
  using Form = OnnxModel::Structure::Form;
  WEFT_TRY(model.weights[name], zeros_without_memory(spec));
  pb::TensorProto& proto = *model.proto.mutable_graph()->add_initializer();
  proto.set_name(name);
  proto.set_data_type(dtype_to_onnx(spec.dtype));
  for (const int64_t dim : spec.shape) proto.add_dims(dim);
  if (external) proto.set_data_location(pb::TensorProto::EXTERNAL);
  model.forms.push_back(external ? Form::External : Form::Raw);
  model.unread[name] = {};
  return {};
}

}  // namespace weft::onnx
