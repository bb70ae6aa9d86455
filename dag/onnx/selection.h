// Internal to dag/onnx: operators whose result holds some of the elements, in lower_selection.cc.
#pragma once

#include "dag/onnx/lowering.h"

namespace weft::onnx {

Status lower_top_k(NodeContext& node);
// The results' shapes depend on values: computed now, where those are known, else Unsupported.
Status lower_compress(NodeContext& node);
Status lower_non_zero(NodeContext& node);
Status lower_unique(NodeContext& node);
Status lower_non_max_suppression(NodeContext& node);

}  // namespace weft::onnx
