#include "dag/onnx/input_shapes.h"

#include <algorithm>

#include "dag/onnx/analysis.h"
#include "dag/onnx/batch_axis.h"

namespace weft::onnx {

using dag::Shape;

InputShapes::InputShapes(const OnnxModel& model, const ImportOptions& options) : options_(options) {
  const std::string symbol = batch_symbol(model);
  for (const auto& port : model.inputs()) batch_axes_[port.name] = batch_axis(port, symbol);
  if (options.batch && !symbol.empty() && !options.sizes.contains(symbol))
    bound_symbols_[symbol] = *options.batch;
}

Result<Shape> InputShapes::of(const pb::ValueInfoProto& info) {
  if (const auto given = options_.input_shapes.find(info.name()); given != options_.input_shapes.end())
    return given->second;
  WEFT_TRY(Shape shape, in_file(info));
  if (options_.batch_first) {
    const auto axis = shape.begin() + static_cast<std::ptrdiff_t>(batch_axes_.at(info.name()));
    if (axis != shape.begin()) std::rotate(shape.begin(), axis, axis + 1);
  }
  return shape;
}

Result<Shape> InputShapes::in_file(const pb::ValueInfoProto& info) {
  const std::string who = "input '" + info.name().substr(0, 128) + "'";
  const bool begins_with_batch = batch_axes_.at(info.name()) == 0;
  const auto& type = info.type().tensor_type();
  if (!type.has_shape())
    return fail(ErrorCode::InvalidArgument, who + " has no shape in the file; give it one");
  Shape shape;
  for (const auto& dim : type.shape().dim()) {
    if (is_known(dim)) {
      shape.push_back(dim.dim_value());
      continue;
    }
    const std::string& symbol = dim.dim_param();
    if (const auto size = options_.sizes.find(symbol); !symbol.empty() && size != options_.sizes.end()) {
      shape.push_back(size->second);
    } else if (const auto bound = bound_symbols_.find(symbol);
               !symbol.empty() && bound != bound_symbols_.end()) {
      shape.push_back(bound->second);
    } else if (shape.empty() && options_.batch && begins_with_batch) {
      shape.push_back(*options_.batch);
      if (!symbol.empty()) bound_symbols_[symbol] = *options_.batch;
    } else {
      return fail(
          ErrorCode::InvalidArgument,
          who + ": dim " + std::to_string(shape.size()) + " is " +
              (symbol.empty() ? "unknown, and nothing says how large it is; data do, or an export with that "
                                "dim fixed"
                              : "the symbol '" + symbol.substr(0, 128) +
                                    "', and nothing says how large it is; data do, or --size " +
                                    symbol.substr(0, 128) + "=N"));
    }
  }
  return shape;
}

}  // namespace weft::onnx
