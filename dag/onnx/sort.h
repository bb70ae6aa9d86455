// Internal to dag/onnx: nodes in an order in which each stands behind what it reads.
#pragma once

#include "base/result.h"
#include "dag/onnx/schema.h"

namespace weft::onnx {

// Sorts the nodes of the graph, of its functions and of all subgraphs; what is in order stays as it is, and
// no node moves further than it must. InvalidArgument, with the nodes' names, where some feed one another.
// Names that nothing defines, or several nodes, are for others to refuse.
Status sort_nodes(pb::ModelProto& model);

}  // namespace weft::onnx
