#include "dag/onnx/inference_twin.h"

#include <string>
#include <unordered_map>
#include <unordered_set>

namespace weft::onnx {
namespace {

using Names = std::unordered_set<std::string>;

Names outputs_of(const pb::GraphProto& graph) {
  Names names;
  for (const auto& output : graph.output()) names.insert(output.name());
  return names;
}

Names values_read(const pb::GraphProto& graph) {
  Names names = outputs_of(graph);
  for (const auto& node : graph.node()) names.insert(node.input().begin(), node.input().end());
  return names;
}

void remove_attribute(pb::NodeProto& node, const char* name) {
  for (int i = node.attribute_size(); i-- > 0;)
    if (node.attribute(i).name() == name) node.mutable_attribute()->DeleteSubrange(i, 1);
}

Status normalise_by_running_statistics(int64_t opset, const Names& read, pb::NodeProto& node) {
  for (int i = 1; i < node.output_size(); ++i)
    if (!node.output(i).empty() && read.contains(node.output(i)))
      return fail(ErrorCode::Unsupported, "BatchNormalization '" + node.name() + "': its output '" +
                                              node.output(i) + "' is read, and exists in training mode only");
  if (node.output_size() > 1) node.mutable_output()->DeleteSubrange(1, node.output_size() - 1);
  if (opset >= 14) remove_attribute(node, "training_mode");
  if (opset < 7)
    for (auto& attribute : *node.mutable_attribute())
      if (attribute.name() == "is_test") attribute.set_i(1);
  return {};
}

// Takes the node out, or, where its result has a name that must stay, makes it a copy.
bool drop_dropout(const Names& outputs, const Names& read, pb::NodeProto& node,
                  std::unordered_map<std::string, std::string>& renamed) {
  const bool mask_read = node.output_size() > 1 && read.contains(node.output(1));
  if (mask_read) {  // stays, in inference mode: without training_mode it copies and returns a mask of ones
    while (node.input_size() > 2) node.mutable_input()->RemoveLast();
    return false;
  }
  if (!outputs.contains(node.output(0))) {
    renamed[node.output(0)] = node.input(0);
    return true;
  }
  node.set_op_type("Identity");
  node.clear_attribute();
  node.mutable_input()->DeleteSubrange(1, node.input_size() - 1);
  node.mutable_output()->DeleteSubrange(1, node.output_size() - 1);
  return false;
}

// Constants that only a Dropout read, and descriptions of values that are gone.
void remove_leftovers(pb::GraphProto& graph, const Names& read_before) {
  const Names read = values_read(graph);
  Names defined;
  for (int i = graph.node_size(); i-- > 0;) {
    const auto& node = graph.node(i);
    const bool orphan = node.op_type() == "Constant" && node.output_size() == 1 &&
                        !read.contains(node.output(0)) && read_before.contains(node.output(0));
    if (orphan) {
      graph.mutable_node()->DeleteSubrange(i, 1);
      continue;
    }
    defined.insert(node.output().begin(), node.output().end());
  }
  for (const auto& input : graph.input()) defined.insert(input.name());
  for (const auto& initializer : graph.initializer()) defined.insert(initializer.name());
  for (int i = graph.value_info_size(); i-- > 0;)
    if (!defined.contains(graph.value_info(i).name())) graph.mutable_value_info()->DeleteSubrange(i, 1);
}

bool is_standard(const pb::NodeProto& node) { return node.domain().empty() || node.domain() == "ai.onnx"; }

}  // namespace

Status to_inference_mode(int64_t opset, pb::GraphProto& graph) {
  const Names outputs = outputs_of(graph);
  const Names read = values_read(graph);
  std::unordered_map<std::string, std::string> renamed;
  google::protobuf::RepeatedPtrField<pb::NodeProto> kept;
  for (auto& node : *graph.mutable_node()) {
    for (auto& input : *node.mutable_input())
      if (const auto found = renamed.find(input); found != renamed.end()) input = found->second;
    if (is_standard(node) && node.op_type() == "BatchNormalization")
      WEFT_TRY_STATUS(normalise_by_running_statistics(opset, read, node));
    const bool dropout =
        is_standard(node) && node.op_type() == "Dropout" && node.input_size() > 0 && node.output_size() > 0;
    if (dropout && drop_dropout(outputs, read, node, renamed)) continue;
    kept.Add()->Swap(&node);
  }
  graph.mutable_node()->Swap(&kept);
  remove_leftovers(graph, read);
  return {};
}

}  // namespace weft::onnx
