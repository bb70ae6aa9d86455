#include "dag/onnx/inference_twin.h"
#include "dag/onnx/node_questions.h"

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "dag/onnx/batch_norm.h"
#include "dag/onnx/expand.h"
#include "dag/onnx/node_questions.h"

namespace weft::onnx {
namespace {

using Names = std::unordered_set<std::string>;
using Nodes = google::protobuf::RepeatedPtrField<pb::NodeProto>;

Names outputs_of(const pb::GraphProto& graph) {
  Names names;
  for (const auto& output : graph.output()) names.insert(output.name());
  return names;
}

// Names that nodes read, and those that only subgraphs within them read.
void collect_reads(const Nodes& nodes, Names& here, Names& below) {
  for (const auto& node : nodes) {
    here.insert(node.input().begin(), node.input().end());
    visit_bodies(node, [&](const pb::GraphProto& body) {
      for (const auto& output : body.output()) below.insert(output.name());
      collect_reads(body.node(), below, below);
    });
  }
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
  Names read = outputs_of(graph);
  collect_reads(graph.node(), read, read);
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

Status graph_to_inference_mode(int64_t opset, pb::GraphProto& graph);

// `outputs`: the names of these nodes' results that must stay, whoever reads them.
Status nodes_to_inference_mode(int64_t opset, Names outputs, Nodes& nodes) {
  Names read = outputs;
  Names below;
  collect_reads(nodes, read, below);
  outputs.insert(below.begin(), below.end());  // a name that a subgraph reads stays too
  read.insert(below.begin(), below.end());
  std::unordered_map<std::string, std::string> renamed;
  Nodes kept;
  for (auto& node : nodes) {
    for (auto& input : *node.mutable_input())
      if (const auto found = renamed.find(input); found != renamed.end()) input = found->second;
    for (auto& attribute : *node.mutable_attribute())
      if (attribute.has_g()) WEFT_TRY_STATUS(graph_to_inference_mode(opset, *attribute.mutable_g()));
    if (is_standard(node) && node.op_type() == "BatchNormalization")
      WEFT_TRY_STATUS(normalise_by_running_statistics(opset, read, node));
    const bool dropout =
        is_standard(node) && node.op_type() == "Dropout" && node.input_size() > 0 && node.output_size() > 0;
    if (dropout && drop_dropout(outputs, read, node, renamed)) continue;
    kept.Add()->Swap(&node);
  }
  nodes.Swap(&kept);
  return {};
}

Status graph_to_inference_mode(int64_t opset, pb::GraphProto& graph) {
  Names read = outputs_of(graph);
  collect_reads(graph.node(), read, read);
  WEFT_TRY_STATUS(nodes_to_inference_mode(opset, outputs_of(graph), *graph.mutable_node()));
  remove_leftovers(graph, read);
  return {};
}

Status function_to_inference_mode(int64_t opset, pb::FunctionProto& function) {
  for (const auto& entry : function.opset_import())
    if (entry.domain().empty() || entry.domain() == "ai.onnx") opset = entry.version();
  const Names outputs(function.output().begin(), function.output().end());
  return nodes_to_inference_mode(opset, outputs, *function.mutable_node());
}

}  // namespace

Status to_inference_mode(int64_t opset, const std::set<std::string>& instance_norms, pb::ModelProto& model) {
  for (auto& node : *model.mutable_graph()->mutable_node())
    if (is_batch_norm(node) && node.input_size() >= 5 && instance_norms.contains(node.output(0)))
      node = as_instance_norm(node);
  WEFT_TRY_STATUS(graph_to_inference_mode(opset, *model.mutable_graph()));
  for (auto& function : *model.mutable_functions())
    WEFT_TRY_STATUS(function_to_inference_mode(opset, function));
  return {};
}

}  // namespace weft::onnx
