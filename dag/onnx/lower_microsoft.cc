// Operators of the domain com.microsoft that exporters write, by the ops of the table.
#include "dag/onnx/lowering.h"

namespace weft::onnx {

std::span<const LowerRow> microsoft_lowerings() { return {}; }

}  // namespace weft::onnx
