// Attention and what stands around it in transformers.
#include "dag/onnx/lowering.h"

namespace weft::onnx {

std::span<const LowerRow> attention_lowerings() { return {}; }

}  // namespace weft::onnx
