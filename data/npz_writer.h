// Writes npz files that numpy.load reads: entries stored, in the order given, no time and no name of a
// machine, so that equal arrays give equal bytes. zip64 records are written where a size needs them.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/tensor.h"

namespace weft::data {

struct NpzArray {
  std::string name;
  dag::Tensor tensor;
};

// Hands the file's bytes to `sink` piece by piece; stops at the sink's first error and returns it.
// InvalidArgument: an empty or repeated name. Unsupported: BF16, which numpy lacks; more than 65534 arrays.
using ByteSink = std::function<Status(std::span<const std::byte>)>;
Status write_npz(std::span<const NpzArray> arrays, const ByteSink& sink);

Result<std::vector<std::byte>> npz_bytes(std::span<const NpzArray> arrays);

}  // namespace weft::data
