#include "dag/onnx/batch_axis.h"

#include <algorithm>
#include <cctype>

namespace weft::onnx {
namespace {

bool is_symbol(const std::string& dim) {
  return !dim.empty() && dim != "?" &&
         !std::all_of(dim.begin(), dim.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

// A plain name: "batch*heads" counts something else.
bool speaks_of_batch(const std::string& dim) {
  std::string lower;
  for (const unsigned char c : dim) {
    if (std::isalnum(c) == 0 && c != '_' && c != '.') return false;
    lower += static_cast<char>(std::tolower(c));
  }
  return lower.find("batch") != std::string::npos;
}

}  // namespace

std::string batch_symbol(const OnnxModel& model) {
  const auto ports = model.inputs();
  std::string anywhere, first;
  for (const OnnxModel::Port& port : ports)
    for (size_t axis = 0; axis < port.dims.size(); ++axis) {
      const std::string& dim = port.dims[axis];
      if (!is_symbol(dim)) continue;
      if (axis == 0 && speaks_of_batch(dim)) return dim;
      if (axis == 0 && first.empty()) first = dim;
      if (anywhere.empty() && speaks_of_batch(dim)) anywhere = dim;
    }
  return anywhere.empty() ? first : anywhere;
}

size_t batch_axis(const OnnxModel::Port& port, std::string_view symbol) {
  if (symbol.empty()) return 0;
  const auto at = std::find(port.dims.begin(), port.dims.end(), symbol);
  return at == port.dims.end() ? 0 : static_cast<size_t>(at - port.dims.begin());
}

}  // namespace weft::onnx
