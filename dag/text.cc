#include "dag/text.h"

namespace weft::dag {

std::string to_text(const Graph& graph) {
  std::string text;
  const auto ref = [](ValueId value) {
    return value.valid() ? "%" + std::to_string(value.index) : std::string("-");
  };
  for (const Op& op : graph.ops()) {
    if (op.phase == Phase::Backward) text += "^ ";
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const Value& value = graph.value(op.outputs[i]);
      text += (i ? ", " : "") + ref(op.outputs[i]) + " " + to_string(value.spec);
      if (value.layout != Layout::Plain) text += ":" + std::string(to_string(value.layout));
    }
    text += " = " + std::string(to_string(op.kind)) + "(";
    for (size_t i = 0; i < op.inputs.size(); ++i) text += (i ? ", " : "") + ref(op.inputs[i]);
    text += ")";
    if (!op.attributes.entries().empty()) text += " " + to_string(op.attributes);
    if (op.group.valid()) text += " group=" + std::to_string(op.group.index);
    if (!op.name.empty()) text += "  # " + op.name;
    text += "\n";
  }
  for (const GraphOutput& output : graph.outputs())
    text += std::string(to_string(output.role)) + " " + output.name + " = " + ref(output.value) + "\n";
  return text;
}

}  // namespace weft::dag
