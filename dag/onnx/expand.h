// Internal to dag/onnx: the model's functions put in place of their calls, so that everything after sees
// plain nodes only. Control flow stays (what it does is known when shapes are), but with names of its own.
#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "dag/onnx/limits.h"
#include "dag/onnx/structure.h"

namespace weft::onnx {

// Of all nodes, those within subgraphs included, no two define the same name: a name means one value.
struct ExpandedGraph {
  const pb::GraphProto* graph = nullptr;  // inputs, initializers and outputs are those of the file
  std::vector<const pb::NodeProto*> nodes = {};
  std::deque<pb::NodeProto> made = {};  // the nodes that are not as they stand in the file
  int64_t opset = 0;
  std::unordered_map<const pb::NodeProto*, int64_t> opsets =
      {};  // of nodes from functions, where it is another

  int64_t opset_of(const pb::NodeProto& node) const {
    const auto found = opsets.find(&node);
    return found == opsets.end() ? opset : found->second;
  }
};

// REQUIRES: check_well_formed(model). Errors: InvalidArgument for functions that call themselves, names that
// nothing defines and attributes that refer to nothing; ResourceExhausted when the calls make more nodes or
// bytes than the limits say, before they are made; Unsupported for sequences and graphs as arguments.
Result<ExpandedGraph> expand_functions(const OnnxModel::Structure& model, const ImportLimits& limits);

// Calls visit(node) for every node, those of subgraphs after the node that has them.
template <typename Visit>
void visit_nodes(const pb::GraphProto& graph, const Visit& visit);
template <typename Visit>
void visit_bodies(const pb::NodeProto& node, const Visit& visit) {
  for (const auto& attribute : node.attribute()) {
    if (attribute.has_g()) visit(attribute.g());
    for (const auto& graph : attribute.graphs()) visit(graph);
  }
}
template <typename Visit>
void visit_node(const pb::NodeProto& node, const Visit& visit) {
  visit(node);
  visit_bodies(node, [&](const pb::GraphProto& body) { visit_nodes(body, visit); });
}
template <typename Visit>
void visit_nodes(const pb::GraphProto& graph, const Visit& visit) {
  for (const auto& node : graph.node()) visit_node(node, visit);
}
template <typename Visit>
void visit_nodes(const ExpandedGraph& graph, const Visit& visit) {
  for (const pb::NodeProto* node : graph.nodes) visit_node(*node, visit);
}

}  // namespace weft::onnx
