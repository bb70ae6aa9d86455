// Copies between arrays with strides: what slicing, concatenating, expanding, transposing and broadcasting
// come to.
#pragma once

#include <cstdint>
#include <vector>

#include "dag/tensor.h"
#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {

using Strides = std::vector<int64_t>;  // elements

Strides row_major(const dag::Shape& shape);
// Of an operand of shape `from` read as broadcast to shape `to`: zero along stretched dims. REQUIRES: numpy
// allows it.
Strides broadcast_strides(const dag::Shape& from, const dag::Shape& to);

// A walk over `shape` with the fewest dims: those of size one dropped, neighbours merged where every array
// allows.
struct Walk {
  dag::Shape shape;              // at least one dim
  std::vector<Strides> strides;  // one for each array
};
Walk simplify(const dag::Shape& shape, std::vector<Strides> strides);

// Reads elements [start, start + count) of the walk (in row-major order, array 0) into `target`,
// contiguously.
void load_strided(const Walk& walk, const void* source, int64_t element_size, int64_t start, int64_t count,
                  void* target);

// A prepared copy of all elements from array 0 to array 1. Element sizes 1, 2, 4, 8.
class StridedCopy {
 public:
  StridedCopy(const dag::Shape& shape, Strides source, Strides target, int64_t element_size);
  void run(const Team& team, const LoopTable& loops, const void* source, void* target) const;

 private:
  void run_transposed(const Team& team, const LoopTable& loops, const void* source, void* target) const;
  Walk walk_;
  int64_t element_size_;
  // When the source is contiguous along another dim than the target: which, else -1.
  int transposed_ = -1;
};

}  // namespace weft::peer::cpu
