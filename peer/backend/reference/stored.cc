// Matrices of weights that lie in memory in fewer bits: what each number is, and the product with it.
#include <limits>

#include "dag/stored_matrix.h"
#include "peer/backend/reference/kernels.h"

namespace weft::peer::reference {
namespace {

dag::StoredMatrix matrix_of(const Call& c, size_t first) {
  std::vector<const dag::TensorSpec*> specs;
  specs.reserve(c.inputs.size());
  for (size_t i = 0; i < c.inputs.size(); ++i) specs.push_back(c.has(i) ? &c.in(i).spec : nullptr);
  return dag::stored_matrix({specs, c.attributes}, first).value();
}

int64_t integer_at(const dag::StoredMatrix& matrix, const Wholes& numbers, int64_t bits, int64_t i) {
  if (bits == 8) return numbers[at(i)];
  const int64_t four = (numbers[at(i / 2)] & 0xff) >> (i % 2 * 4) & 15;
  return matrix.numbers == DType::I8 && four > 7 ? four - 16 : four;
}

// Row-major. Of integers in float32, which is what a number is defined by.
Reals widened(const Call& c, size_t first, const dag::StoredMatrix& matrix) {
  if (matrix.is_half()) return c.reals(first);
  Reals wide;
  for (int64_t i = 0; i < matrix.rows * matrix.columns; ++i) {
    const int64_t row = i / matrix.columns / matrix.block_rows,
                  column = i % matrix.columns / matrix.block_columns;
    const size_t block = at(row * matrix.scale_columns() + column);
    const int64_t zero = matrix.has_zero ? integer_at(matrix, c.wholes(first + 2), matrix.zero_bits,
                                                      static_cast<int64_t>(block))
                                         : matrix.zero_of_all;
    const auto number = static_cast<float>(integer_at(matrix, c.wholes(first), matrix.bits, i) - zero);
    wide.push_back(rounded(matrix.rounded, number * static_cast<float>(c.reals(first + 1)[block])));
  }
  return wide;
}

}  // namespace

void run_stored_matmul(const Call& c) {
  const dag::StoredMatrix matrix = matrix_of(c, 1);
  const Reals w = widened(c, 1, matrix);
  const bool trans_b = c.attributes.get_int(Attr::TransB) != 0;
  const int64_t inner = trans_b ? matrix.columns : matrix.rows,
                columns = trans_b ? matrix.rows : matrix.columns;
  const int64_t row_step = trans_b ? 1 : columns, column_step = trans_b ? inner : 1;
  Reals& y = c.out().reals;
  for (int64_t i = 0; i < c.in(0).count() / inner; ++i)
    for (int64_t k = 0; k < inner; ++k)
      for (int64_t j = 0; j < columns; ++j)
        y[at(i * columns + j)] += c.reals(0)[at(i * inner + k)] * w[at(k * row_step + j * column_step)];
}

void run_stored_weight(const Call& c) {
  const dag::StoredMatrix matrix = matrix_of(c, 0);
  Reals w = widened(c, 0, matrix);
  if (!c.has(3)) {
    c.out().reals = std::move(w);
    return;
  }
  for (int64_t i = 0; i < c.in(3).count(); ++i) {
    const int64_t raw = c.wholes(3)[at(i)], row = raw < 0 ? raw + matrix.rows : raw;
    const bool is_there = row >= 0 && row < matrix.rows;
    for (int64_t j = 0; j < matrix.columns; ++j)
      c.out().reals[at(i * matrix.columns + j)] =
          is_there ? w[at(row * matrix.columns + j)] : std::numeric_limits<double>::quiet_NaN();
  }
}

}  // namespace weft::peer::reference
