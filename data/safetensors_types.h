// Internal to data: the element types of safetensors, and how messages have names.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "dag/tensor.h"

namespace weft::data {

// Nothing for one that weft has not.
std::optional<dag::DType> dtype_of_safetensors(std::string_view name);
std::string_view safetensors_name(dag::DType dtype);
// Where the type stands among those of the library: tensors of a later one are written first.
size_t safetensors_order(dag::DType dtype);

std::string in_quotes(std::string_view name);  // fit for a terminal, and not long

}  // namespace weft::data
