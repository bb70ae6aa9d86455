#include "dag/onnx/activation.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "dag/onnx/analysis.h"

namespace weft::onnx {
namespace {

bool is_one_of(const pb::NodeProto& node, std::initializer_list<std::string_view> types) {
  return (node.domain().empty() || node.domain() == "ai.onnx") &&
         std::find(types.begin(), types.end(), node.op_type()) != types.end();
}

}  // namespace

std::optional<Activation> activation_in_front(const OnnxModel& model, const std::string& value) {
  const ImportLimits limits;
  if (!check_well_formed(model.structure(), limits)) return std::nullopt;
  const auto graph = expand_functions(model.structure(), limits);
  if (!graph) return std::nullopt;
  std::unordered_map<std::string, const pb::NodeProto*> producers;
  for (const pb::NodeProto* node : graph->nodes)
    for (const auto& output : node->output()) producers.emplace(output, node);
  Activation found;
  std::string name = value;
  for (size_t step = 0; step <= producers.size(); ++step) {
    const auto producer = producers.find(name);
    if (producer == producers.end() || producer->second->input_size() == 0) return std::nullopt;
    const pb::NodeProto& node = *producer->second;
    if (is_one_of(node, {"Softmax", "LogSoftmax", "Sigmoid"})) {
      found.op_type = node.op_type();
      found.node = node.name().empty() ? node.output(0) : node.name();
      found.value = node.input(0);
      return found;
    }
    if (!is_one_of(node, {"Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"}))
      return std::nullopt;
    found.reshaped |= !is_one_of(node, {"Identity", "Cast"});
    name = node.input(0);
  }
  return std::nullopt;
}

}  // namespace weft::onnx
