// Internal to dag/onnx: what can be said of a file before it is lowered.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "dag/onnx/expand.h"
#include "dag/onnx/import.h"
#include "dag/onnx/structure.h"

namespace weft::onnx {

// How often each value is read, by nodes and as an output of the graph or of a subgraph.
std::unordered_map<std::string, int> count_uses(const ExpandedGraph& graph);

// Nodes by operator, functions taken apart; other domains as "domain.Op".
std::map<std::string, int64_t> count_ops(const ExpandedGraph& graph);

// One Unsupported error for all nodes that have no lowering.
Status check_supported(const ExpandedGraph& graph);

// Of the file's graph, without its subgraphs and functions (expand_functions checks those): names are
// present, short, defined once and before they are used.
Status check_well_formed(const OnnxModel::Structure& model, const ImportLimits& limits);

// Whether a gradient flows into the operand of the node.
bool gradient_enters(const pb::NodeProto& node, int operand);

// Values through which a gradient can flow from the graph's outputs, and from those that are read beside
// them.
std::unordered_set<std::string> reached_by_gradient(const ExpandedGraph& graph,
                                                    std::span<const std::string> read = {});

// Float initializers that are no parameters, as PyTorch's newer exporter tells them apart: by the signature
// of the exported program that it leaves in the file, or, where that is missing, by the names it gives
// constants. `warnings`: parameters of the signature that the file does not have any more; may be nullptr.
std::set<std::string> exported_constants(const OnnxModel::Structure& model,
                                         std::vector<std::string>* warnings);
// Those that the signature of the exported program names.
std::set<std::string> exported_parameters(const OnnxModel::Structure& model);

// The mark of an evaluation-mode export: one initializer stands, through Identity, for several parameters
// that happened to be equal when the file was written. Unsupported, with the export call to use instead.
Status check_no_merged_parameters(const OnnxModel::Structure& model, const ExpandedGraph& graph,
                                  const std::unordered_set<std::string>& reached);

// The word of the name that says it is a table or a mask; empty when none does.
std::string word_of_table(const std::string& name);

}  // namespace weft::onnx
