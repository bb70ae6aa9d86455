// Internal to dag/onnx: initializers taken out of a model and put into it.
#pragma once

#include <set>
#include <string>

#include "base/result.h"
#include "dag/onnx/structure.h"

namespace weft::onnx {

// Old files name each among the inputs as well.
void remove_initializers(OnnxModel::Structure& model, const std::set<std::string>& names);

// Zeros, which take no memory: who writes the model gives it other values. `external`: where a file has them.
Status add_initializer(OnnxModel::Structure& model, const std::string& name, const dag::TensorSpec& spec,
                       bool external);

}  // namespace weft::onnx
