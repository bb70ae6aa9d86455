// The header of a .npy array, as numpy.lib.format describes it: versions 1, 2 and 3.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "dag/tensor.h"
#include "data/file.h"

namespace weft::data {

inline constexpr size_t kNpyHeaderMax = size_t{64} << 10;  // bytes

struct NpyHeader {
  dag::TensorSpec spec;  // C order, little-endian
  uint64_t size = 0;     // bytes before the elements
};

// Reads the stream up to the first element. Messages do not name the file: the caller knows it.
Result<NpyHeader> read_npy_header(ByteStream& stream);

// The Python dictionary inside the header, as text.
Result<dag::TensorSpec> parse_npy_dictionary(std::string_view text);

// The whole header for an array of this spec, version 1, padded to 64 bytes. REQUIRES: not BF16, which numpy
// lacks.
std::string npy_header(const dag::TensorSpec& spec);

}  // namespace weft::data
