// MatMul: the last two dims are multiplied, the leading ones broadcast. Det: one number a matrix.
#include "dag/ops/common.h"

namespace weft::dag {
namespace {

using namespace ops;

struct Extents {
  int64_t rows, inner, columns;
};
Extents extents(const Shape& a, const Shape& b, bool trans_a, bool trans_b) {
  const int64_t a_rows = a[a.size() - 2], a_columns = a.back(), b_rows = b[b.size() - 2],
                b_columns = b.back();
  return {trans_a ? a_columns : a_rows, trans_a ? a_rows : a_columns, trans_b ? b_rows : b_columns};
}

Specs infer_matmul(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_numeric(c, 0));
  WEFT_TRY_STATUS(need_same_dtype(c, 0, 1));
  WEFT_TRY(const int64_t trans_a, int_in(c, Attr::TransA, 0, 1));
  WEFT_TRY(const int64_t trans_b, int_in(c, Attr::TransB, 0, 1));
  const Shape &a = c.in(0).shape, &b = c.in(1).shape;
  if (a.size() < 2 || b.size() < 2) return refuse("both operands need rank 2 or more");
  const Extents e = extents(a, b, trans_a != 0, trans_b != 0);
  const int64_t b_inner = trans_b ? b.back() : b[b.size() - 2];
  if (e.inner != b_inner)
    return refuse("inner dims differ: " + std::to_string(e.inner) + " and " + std::to_string(b_inner));
  WEFT_TRY(Shape shape, broadcast_shapes({a.begin(), a.end() - 2}, {b.begin(), b.end() - 2}));
  shape.push_back(e.rows);
  shape.push_back(e.columns);
  return one(c.in(0).dtype, std::move(shape));
}

FlopCount matmul_flops(const ShapeContext& c, std::span<const TensorSpec> outputs) {
  const Extents e = extents(c.in(0).shape, c.in(1).shape, c.attributes.get_int(Attr::TransA) != 0,
                            c.attributes.get_int(Attr::TransB) != 0);
  return saturating_product({2, outputs[0].element_count(), e.inner});
}

Specs infer_integer_matmul(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  for (const size_t i : {0u, 1u}) WEFT_TRY_STATUS(need_byte(c, i));
  const Shape &a = c.in(0).shape, &b = c.in(1).shape;
  if (a.size() < 2 || b.size() < 2) return refuse("both factors need rank 2 or more");
  const Extents e = extents(a, b, false, false);
  if (e.inner != b[b.size() - 2])
    return refuse("inner dims differ: " + std::to_string(e.inner) + " and " +
                  std::to_string(b[b.size() - 2]));
  WEFT_TRY_STATUS(need_zero_point(c, 2, 0, e.rows));
  WEFT_TRY_STATUS(need_zero_point(c, 3, 1, e.columns));
  WEFT_TRY(Shape shape, broadcast_shapes({a.begin(), a.end() - 2}, {b.begin(), b.end() - 2}));
  shape.push_back(e.rows);
  shape.push_back(e.columns);
  return one(DType::I32, std::move(shape));
}

Expr matmul(Expr a, Expr b, bool trans_a, bool trans_b) {
  return apply(OpKind::MatMul, a, b, {{Attr::TransA, int64_t{trans_a}}, {Attr::TransB, int64_t{trans_b}}});
}
// All leading dims as rows.
Expr as_matrix(Expr a) {
  const TensorSpec& spec = spec_of(a);
  const int64_t columns = spec.shape.back();
  return reshape(a, {columns == 0 ? 0 : spec.element_count() / columns, columns});
}

void matmul_vjp(VjpContext& c) {
  Expr a = in(c, 0), b = in(c, 1), g = cotangent(c);
  const bool trans_a = c.attributes().get_int(Attr::TransA) != 0;
  const bool trans_b = c.attributes().get_int(Attr::TransB) != 0;
  give(c, 0, trans_a ? matmul(b, g, trans_b, true) : matmul(g, b, false, !trans_b));
  // A weight under batched activations: one product over all rows, instead of one a batch and a sum.
  const bool weight = spec_of(b).rank() == 2 && spec_of(a).rank() > 2 && !trans_a;
  if (weight && spec_of(a).shape.back() > 0 && spec_of(g).shape.back() > 0) {
    a = as_matrix(a);
    g = as_matrix(g);
  }
  give(c, 1, trans_b ? matmul(g, a, true, trans_a) : matmul(a, g, !trans_a, false));
}

// ---- determinants ----

// The gradient takes n^5 steps: right for singular matrices, and not meant for large ones.
constexpr int64_t kDetRowsMost = 64;

Result<Shape> det_shape(const ShapeContext& c, size_t i) {
  WEFT_TRY_STATUS(need_float(c, i));
  const Shape& a = c.in(i).shape;
  if (a.size() < 2 || a.back() != a[a.size() - 2] || a.back() > kDetRowsMost)
    return refuse_operand(c, i, "square matrices of at most " + std::to_string(kDetRowsMost) + " rows");
  return Shape(a.begin(), a.end() - 2);
}
Specs infer_det(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY(Shape shape, det_shape(c, 0));
  return one(c.in(0).dtype, std::move(shape));
}
Specs infer_det_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY(const Shape shape, det_shape(c, 1));
  WEFT_TRY_STATUS(need_spec(c, 0, c.in(1).dtype, shape));
  return std::vector<TensorSpec>{c.in(1)};
}
void det_vjp(VjpContext& c) { give(c, 0, apply(OpKind::DetGrad, cotangent(c), in(c, 0))); }

void add_determinants(OpTable& table) {
  table.add({.kind = OpKind::Det,
             .family = Family::MatMul,
             .differentiability = Differentiability::Differentiable,
             .infer = infer_det,
             .vjp = det_vjp,
             .flops =
                 [](const ShapeContext& c, std::span<const TensorSpec> outputs) {
                   const int64_t n = c.in(0).shape.back();
                   return saturating_product({outputs[0].element_count(), n, n, n});
                 },
             .about = "a[..,n,n] -> [..]: the determinant; n is 64 at most"});
  table.add({.kind = OpKind::DetGrad,
             .family = Family::MatMul,
             .inputs_min = 2,
             .inputs_max = 2,
             .differentiability = Differentiability::Refused,
             .infer = infer_det_grad,
             .flops =
                 [](const ShapeContext& c, std::span<const TensorSpec> outputs) {
                   const int64_t n = c.in(1).shape.back();
                   return saturating_product({outputs[0].element_count(), n, n, n});
                 },
             .about = "dy, a -> da: dy times the matrix of cofactors, for singular matrices as well"});
}

}  // namespace

void add_matmul_ops(OpTable& table) {
  add_determinants(table);
  table.add(
      {.kind = OpKind::MatMul,
       .family = Family::MatMul,
       .inputs_min = 2,
       .inputs_max = 2,
       .differentiability = Differentiability::Differentiable,
       .infer = infer_matmul,
       .vjp = matmul_vjp,
       .flops = matmul_flops,
       .work = Work::MatMul,
       .about = "a[..,M,K], b[..,K,N] -> [..,M,N]; trans_a, trans_b: swap the operand's last two dims first; "
                "leading dims broadcast"});
  table.add(
      {.kind = OpKind::IntegerMatMul,
       .family = Family::MatMul,
       .inputs_min = 2,
       .inputs_max = 4,
       .infer = infer_integer_matmul,
       .flops = matmul_flops,
       .work = Work::MatMul,
       .about =
           "a[..,M,K], b[..,K,N] (i8 or u8), a's zero point [] or [M]?, b's [] or [N]? -> i32[..,M,N]: the "
           "product of what the values are beyond their zero points; sums wrap around"});
}

}  // namespace weft::dag
