// Matrices of weights that nobody trains and that lie in memory in fewer bits than the float32 that is
// computed in: halves, or integers with a scale for each block. An op that reads one makes the numbers it
// needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "dag/attributes.h"
#include "dag/op_table.h"
#include "dag/tensor.h"

namespace weft::dag {

// The number in row r and column c is what is stored there, widened. Of integers q it is
// (q - zero) * scale, each step in float32, with the scale and the zero of the block of (r, c); then rounded
// to the nearest of `rounded`. Rows, and blocks, lie one after the other, whatever shape a file gives them.
struct StoredMatrix {
  int64_t rows = 0, columns = 0;
  DType numbers = DType::F16;  // F16, BF16, I8, U8
  int64_t bits = 16;           // of a number: 16, 8 or 4. Of four: two in a byte, the first in its lower half
  // Of integers.
  int64_t block_rows = 1, block_columns = 1;  // what shares a scale
  DType scale = DType::F32;                   // F32, F16, BF16
  bool has_zero = false;                      // a zero for each block
  int64_t zero_bits = 8;                      // of a zero: 8 or 4
  int64_t zero_of_all = 0;                    // otherwise
  DType rounded = DType::F32;                 // F32, F16, BF16

  // What zeros of so many elements are: of a single block, whose other four bits are zero, either.
  int64_t zero_bits_of(int64_t elements) const { return elements == scale_rows() * scale_columns() ? 8 : 4; }
  bool is_half() const { return dag::is_half(numbers); }
  int64_t scale_rows() const { return (rows + block_rows - 1) / block_rows; }
  int64_t scale_columns() const { return (columns + block_columns - 1) / block_columns; }
  // Of its tensors: others of as many elements do. What has four bits is one row of bytes.
  TensorSpec numbers_spec() const { return packed(bits, rows, columns); }
  TensorSpec scale_spec() const { return {scale, {scale_rows(), scale_columns()}}; }
  TensorSpec zero_spec() const { return packed(zero_bits, scale_rows(), scale_columns()); }
  Attributes attributes() const;  // of an op that reads it
  bool operator==(const StoredMatrix&) const = default;

 private:
  TensorSpec packed(int64_t each, int64_t height, int64_t width) const {
    if (each == 4) return {numbers, {(height * width + 1) / 2}};
    return {numbers, {height, width}};
  }
};
std::string to_string(const StoredMatrix& matrix);  // "bf16[4,6]", "4 bits of u8[4,6] by 1x32"

// What operands `first` (numbers), then scale and zero, and the attributes say. InvalidArgument where they do
// not go together.
Result<StoredMatrix> stored_matrix(const ShapeContext& context, size_t first);
// The same of an op that was checked.
StoredMatrix stored_matrix_of(const Graph& graph, const Op& op, size_t first);

// Its tensors; scale and zero are empty where it has none.
struct StoredTensors {
  Tensor numbers, scale, zero;
};
// Rows [row, row + count) as F32. REQUIRES: the tensors have the matrix's specs, and it the rows.
Tensor widened_rows(const StoredMatrix& matrix, const StoredTensors& tensors, int64_t row, int64_t count);

}  // namespace weft::dag
