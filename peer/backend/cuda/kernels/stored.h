// Matrices of weights that lie in memory in fewer bits (dag/stored_matrix.h), made float32.
#pragma once

#include "peer/backend/cuda/kernels/index.cuh"
#include "peer/backend/cuda/kernels/shape.h"

namespace weft::peer::cuda {

enum class StoredType : int32_t { F32, F16, BF16, I8, U8 };

// Numbers, of which one array is there.
struct StoredArray {
  Array<const float> singles;
  Array<const uint16_t> halves;
  Array<const uint8_t> bytes;  // of four bits two numbers in each
};

// to[i] = the number in row i / columns and column i % columns, or with indices in the row that one of them
// names; NaN for a row that is nowhere.
struct WidenStored {
  StoredArray numbers, scale;
  Array<const uint8_t> zero;
  Indices indices;
  Array<float> to;
  StoredType type, scale_type, rounded;
  int32_t bits, zero_bits, zero_of_all, has_zero, picks;
  uint32_t count;  // of `to`
  int64_t rows;
  Divider columns, block_rows, block_columns;
  int64_t scale_columns;
};
extern const EntryOf<WidenStored> k_widen_stored;

}  // namespace weft::peer::cuda
