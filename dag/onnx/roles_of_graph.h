// Internal to dag/onnx: judge_roles of a graph that was checked and written out already.
#pragma once

#include "dag/onnx/expand.h"
#include "dag/onnx/roles.h"

namespace weft::onnx {

// REQUIRES: every pattern matches something.
Result<RoleTable> roles_of_graph(const OnnxModel::Structure& model, const ExpandedGraph& graph,
                                 const RoleOptions& options, const LookAtValues& look);

}  // namespace weft::onnx
