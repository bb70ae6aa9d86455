// A group of elementwise ops, or one alone, as the source of one kernel that reads each operand and writes
// each result once. A pure function: equal groups give equal text, and one kernel, whose shapes are equal as
// far as operands are stretched to them.
//
// The text is a function `extern "C" __global__ void NAME(NAME_Parameters)`, for NVRTC and for the shim
// alike; it includes what it needs of kernels/ by names from the root. On the shim it also has `extern "C"
// const Entry* NAME_entry()`. NAME_Parameters is the Arrays of all inputs, of all outputs, and, where the
// kernel draws, of the context: each two words, one behind the other (FusedParameters).
//
// A thread takes kFusedElements neighbouring elements: whole operands by one wide load, an operand that
// broadcasting stretches by as few as its strides allow, with divisions by numbers that the compiler knows.
#pragma once

#include <optional>
#include <vector>

#include "peer/backend/cuda/device.h"
#include "peer/backend/kernel.h"

namespace weft::peer::cuda {

inline constexpr int64_t kFusedElements = 4;  // of a thread

struct FusedSource {
  KernelSource source;
  Grid grid;
  std::vector<int64_t> input_counts, output_counts;  // elements, in the order of the signature
  std::vector<int> in_place;  // by output: the input whose buffer it may take over, or -1
  bool reads_context = false;
};

// None: an op is not served on its dtypes, or the group's results differ in shape. REQUIRES: values are plain
// and not empty.
std::optional<FusedSource> make_fused_source(const dag::Graph& graph, const GroupSignature& group);

}  // namespace weft::peer::cuda
