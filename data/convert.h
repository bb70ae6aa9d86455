// Elements of one type as another: what a column of a data set becomes where the graph takes another type.
// A number stays the number that it is, or it is refused; but a float becomes a narrower float as numpy's
// astype makes it, by rounding.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "dag/tensor.h"

namespace weft::data {

// Converts all elements, up to the first that `to` cannot hold, whose index is returned: a fraction or a NaN
// for an integer, a number beyond its range, an integer that a float cannot hold exactly, a finite float that
// would become infinite, anything but 0 and 1 for a bool. Nothing: all were converted.
// REQUIRES: `in` and `out` hold equally many elements, each aligned for its type.
std::optional<size_t> convert_elements(dag::DType from, std::span<const std::byte> in, dag::DType to,
                                       std::span<std::byte> out);

// The element as the nearest number that a double holds.
double element_number(dag::DType dtype, std::span<const std::byte> elements, size_t index);
// The element as a number in text: "3", "2.5", "nan".
std::string element_text(dag::DType dtype, std::span<const std::byte> elements, size_t index);

}  // namespace weft::data
