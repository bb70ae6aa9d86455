// Matrices of weights that lie in memory in fewer bits (dag/stored_matrix.h): multiplied, or made float32.
#include "dag/ops/common.h"
#include "dag/stored_matrix.h"

namespace weft::dag {
namespace {

using namespace ops;

Specs infer_stored_matmul(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  if (c.in(0).dtype != DType::F32 || c.in(0).rank() < 1) return refuse_operand(c, 0, "dtype f32 and an axis");
  WEFT_TRY(const StoredMatrix matrix, stored_matrix(c, 1));
  WEFT_TRY(const int64_t trans_b, int_in(c, Attr::TransB, 0, 1));
  Shape shape = c.in(0).shape;
  const int64_t inner = trans_b ? matrix.columns : matrix.rows;
  if (shape.back() != inner)
    return refuse("inner dims differ: " + std::to_string(shape.back()) + " and " + std::to_string(inner));
  shape.back() = trans_b ? matrix.rows : matrix.columns;
  return one(DType::F32, std::move(shape));
}

FlopCount stored_matmul_flops(const ShapeContext& c, std::span<const TensorSpec> outputs) {
  return saturating_product({2, outputs[0].element_count(), c.in(0).shape.back()});
}

// Nobody trains the matrix.
void stored_matmul_vjp(VjpContext& c) {
  Attributes attributes = c.attributes();
  attributes.set(Attr::TransB, 1 - attributes.get_int(Attr::TransB));
  std::vector<ValueId> inputs = c.op().inputs;
  inputs[0] = c.cotangent();
  c.set(0, c.add(OpKind::StoredMatMul, std::move(inputs), std::move(attributes)));
}

Specs infer_stored_weight(const ShapeContext& c) {
  WEFT_TRY(const StoredMatrix matrix, stored_matrix(c, 0));
  if (!c.has(3)) return one(DType::F32, {matrix.rows, matrix.columns});
  WEFT_TRY_STATUS(need_index(c, 3));
  Shape shape = c.in(3).shape;
  shape.push_back(matrix.columns);
  return one(DType::F32, std::move(shape));
}

}  // namespace

void add_stored_ops(OpTable& table) {
  table.add(
      {.kind = OpKind::StoredMatMul,
       .family = Family::MatMul,
       .inputs_min = 2,
       .inputs_max = 4,
       .differentiability = Differentiability::Differentiable,
       .infer = infer_stored_matmul,
       .vjp = stored_matmul_vjp,
       .flops = stored_matmul_flops,
       .work = Work::MatMul,
       .about =
           "x[..,K], w (f16, bf16; or i8, u8 of bits 8 or 4), scale?, zero? -> [..,N]: x times the "
           "matrix of shape [K,N], with trans_b [N,K]; of integers (w - zero) * scale, as dtype, in "
           "blocks of sizes, where the attribute zero stands in for an absent operand; no cotangent of the "
           "matrix"});
  table.add({.kind = OpKind::StoredWeight,
             .family = Family::MatMul,
             .inputs_min = 1,
             .inputs_max = 4,
             .infer = infer_stored_weight,
             .flops = flops_an_output_element<2>,
             .about = "w, scale?, zero?, indices? -> f32 of shape: the matrix that StoredMatMul multiplies "
                      "with, or its rows [indices.., C]"});
}

}  // namespace weft::dag
