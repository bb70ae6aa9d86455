// MatMul: rows times columns, inner dim in order. Det: by elimination; its gradient by cofactors.
#include <cmath>

#include "peer/backend/reference/kernels.h"

namespace weft::peer::reference {
namespace {

// One operand: its matrices' strides by (row, column) after the optional transpose.
struct Matrix {
  int64_t row_stride, column_stride, size;
};
Matrix matrix_of(const Shape& shape, bool transposed) {
  const int64_t rows = shape[shape.size() - 2], columns = shape.back();
  return transposed ? Matrix{1, columns, rows * columns} : Matrix{columns, 1, rows * columns};
}

template <typename T>
void matmul(const Call& c, const std::vector<T>& a, const std::vector<T>& b, std::vector<T>& y) {
  const bool trans_a = c.attributes.get_int(Attr::TransA) != 0,
             trans_b = c.attributes.get_int(Attr::TransB) != 0;
  const Shape &sa = c.shape(0), &sb = c.shape(1), &sy = c.out().spec.shape;
  const Matrix ma = matrix_of(sa, trans_a), mb = matrix_of(sb, trans_b);
  const int64_t rows = sy[sy.size() - 2], columns = sy.back();
  const int64_t inner = trans_a ? sa[sa.size() - 2] : sa.back();
  const Shape batch(sy.begin(), sy.end() - 2);
  const std::array<Shape, 2> strides{broadcast_strides({sa.begin(), sa.end() - 2}, batch),
                                     broadcast_strides({sb.begin(), sb.end() - 2}, batch)};
  walk<2>(batch, strides, {0, 0}, [&](size_t n, const auto& from) {
    const T* pa = a.data() + from[0] * ma.size;
    const T* pb = b.data() + from[1] * mb.size;
    T* py = y.data() + static_cast<int64_t>(n) * rows * columns;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t k = 0; k < inner; ++k) {
        const T factor = pa[i * ma.row_stride + k * ma.column_stride];
        for (int64_t j = 0; j < columns; ++j)
          py[i * columns + j] += factor * pb[k * mb.row_stride + j * mb.column_stride];
      }
  });
}

// Integers, less the zero point where there is one: one for all, or of element i the number i / step, in
// turn.
std::vector<uint64_t> centred(const Call& c, size_t operand, int64_t step) {
  std::vector<uint64_t> values(c.wholes(operand).begin(), c.wholes(operand).end());
  if (!c.has(operand + 2)) return values;
  const Wholes& points = c.wholes(operand + 2);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] -= static_cast<uint64_t>(points[i / at(step) % points.size()]);
  return values;
}

// Of the n rows of n numbers in `a`.
double determinant(Reals a, int64_t n) {
  double product = 1;
  for (int64_t k = 0; k < n; ++k) {
    int64_t pivot = k;
    for (int64_t i = k + 1; i < n; ++i)
      if (std::abs(a[at(i * n + k)]) > std::abs(a[at(pivot * n + k)])) pivot = i;
    if (a[at(pivot * n + k)] == 0) return 0;
    if (pivot != k) {
      product = -product;
      for (int64_t j = 0; j < n; ++j) std::swap(a[at(k * n + j)], a[at(pivot * n + j)]);
    }
    product *= a[at(k * n + k)];
    for (int64_t i = k + 1; i < n; ++i) {
      const double factor = a[at(i * n + k)] / a[at(k * n + k)];
      for (int64_t j = k; j < n; ++j) a[at(i * n + j)] -= factor * a[at(k * n + j)];
    }
  }
  return product;
}

// Matrix i of operand `operand`, without one row and one column where these are given.
Reals matrix_at(const Call& c, size_t operand, int64_t i, int64_t n, int64_t row = -1, int64_t column = -1) {
  Reals matrix;
  for (int64_t r = 0; r < n; ++r)
    for (int64_t k = 0; k < n; ++k)
      if (r != row && k != column) matrix.push_back(c.reals(operand)[at((i * n + r) * n + k)]);
  return matrix;
}

void det(const Call& c) {
  const int64_t n = c.shape(0).back();
  for (int64_t i = 0; i < c.out().count(); ++i) c.out().reals[at(i)] = determinant(matrix_at(c, 0, i, n), n);
}

void det_grad(const Call& c) {
  const int64_t n = c.shape(1).back();
  for (int64_t i = 0; i < c.in(0).count(); ++i)
    for (int64_t r = 0; r < n; ++r)
      for (int64_t k = 0; k < n; ++k)
        c.out().reals[at((i * n + r) * n + k)] =
            c.reals(0)[at(i)] * ((r + k) % 2 == 0 ? 1 : -1) * determinant(matrix_at(c, 1, i, n, r, k), n - 1);
}

}  // namespace

void run_matmul(const Call& call) {
  if (call.kind == OpKind::Det) return det(call);
  if (call.kind == OpKind::DetGrad) return det_grad(call);
  if (call.kind == OpKind::StoredMatMul) return run_stored_matmul(call);
  if (call.kind == OpKind::StoredWeight) return run_stored_weight(call);
  if (call.kind == OpKind::Attention || call.kind == OpKind::AttentionGrad) return run_attention(call);
  if (call.out().is_real()) return matmul(call, call.reals(0), call.reals(1), call.out().reals);
  // Integers in unsigned arithmetic, which wraps where signed would be undefined.
  std::vector<uint64_t> y(call.out().wholes.size());
  matmul(call, centred(call, 0, call.shape(0).back()), centred(call, 1, 1), y);
  for (size_t i = 0; i < y.size(); ++i)
    call.out().wholes[i] = wrapped(call.out().spec.dtype, static_cast<int64_t>(y[i]));
}

}  // namespace weft::peer::reference
