// Attention as one op, so that nobody holds a score of every query for every key.
#include "dag/ops/common.h"

namespace weft::dag {
namespace {

using namespace ops;

// Of operands first (queries), first + 1 (keys) and first + 2 (values), then a bias and a mask.
struct Extents {
  Shape lead;
  int64_t queries = 0, keys = 0, inner = 0, columns = 0;

  Shape scores() const {
    Shape shape = lead;
    shape.push_back(queries);
    shape.push_back(keys);
    return shape;
  }
  Shape result() const {
    Shape shape = lead;
    shape.push_back(queries);
    shape.push_back(columns);
    return shape;
  }
};

Result<Extents> extents(const ShapeContext& c, size_t first) {
  WEFT_TRY_STATUS(need_operands(c, first + 3));
  WEFT_TRY_STATUS(need_float(c, first));
  for (const size_t i : {first + 1, first + 2}) WEFT_TRY_STATUS(need_same_dtype(c, first, i));
  WEFT_TRY(const int64_t trans_b, int_in(c, Attr::TransB, 0, 1));
  WEFT_TRY_STATUS(int_in(c, Attr::ZeroRows, 0, 1));
  const Shape &q = c.in(first).shape, &k = c.in(first + 1).shape, &v = c.in(first + 2).shape;
  if (q.size() < 2 || k.size() != q.size() || v.size() != q.size())
    return refuse("queries, keys and values need one rank, of 2 or more");
  Extents e{.lead = {q.begin(), q.end() - 2}};
  e.queries = q[q.size() - 2], e.inner = q.back(), e.columns = v.back();
  e.keys = trans_b ? k[k.size() - 2] : k.back();
  const int64_t inner = trans_b ? k.back() : k[k.size() - 2];
  for (const Shape* other : {&k, &v})
    if (!std::equal(e.lead.begin(), e.lead.end(), other->begin()))
      return refuse("queries, keys and values have other leading dims");
  if (inner != e.inner || v[v.size() - 2] != e.keys || e.keys == 0)
    return refuse("keys " + to_string(k) + " and values " + to_string(v) + " do not go with queries " +
                  to_string(q));
  WEFT_TRY_STATUS(checked_element_count(e.scores()));
  for (const size_t i : {first + 3, first + 4}) {
    if (!c.has(i)) continue;
    if (i == first + 3) WEFT_TRY_STATUS(need_same_dtype(c, first, i));
    if (i == first + 4) WEFT_TRY_STATUS(need_bool(c, i));
    WEFT_TRY(const Shape both, broadcast_shapes(c.in(i).shape, e.scores()));
    if (both != e.scores()) return refuse_operand(c, i, "one that broadcasts to " + to_string(e.scores()));
  }
  return e;
}

Specs infer_attention(const ShapeContext& c) {
  WEFT_TRY(const Extents e, extents(c, 0));
  return one(c.in(0).dtype, e.result());
}
Specs infer_attention_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 4));
  WEFT_TRY(const Extents e, extents(c, 1));
  WEFT_TRY_STATUS(need_spec(c, 0, c.in(1).dtype, e.result()));
  return std::vector<TensorSpec>{c.in(1), c.in(2), c.in(3)};
}

// Products with `inners` terms for each of the scores, and their softmax.
FlopCount score_flops(const Extents& e, int64_t inners, int64_t softmax) {
  const int64_t scores = TensorSpec{DType::F32, e.scores()}.element_count();
  return saturating_product({scores, 2 * inners + softmax});
}
FlopCount attention_flops(const ShapeContext& c, std::span<const TensorSpec>) {
  const Extents e = *extents(c, 0);
  return score_flops(e, e.inner + e.columns, 30);
}
FlopCount attention_grad_flops(const ShapeContext& c, std::span<const TensorSpec>) {
  const Extents e = *extents(c, 1);
  return score_flops(e, 3 * e.inner + 2 * e.columns, 36);
}

void attention_vjp(VjpContext& c) {
  if (!c.cotangent(0).valid()) return;
  std::vector<ValueId> operands{c.cotangent(0)};
  operands.insert(operands.end(), c.op().inputs.begin(), c.op().inputs.end());
  const auto grads = c.builder().add_all(OpKind::AttentionGrad, std::move(operands), c.attributes());
  for (size_t i = 0; i < 3; ++i) c.set(i, grads[i]);
}

}  // namespace

void add_attention_ops(OpTable& table) {
  table.add({.kind = OpKind::Attention,
             .family = Family::MatMul,
             .inputs_min = 3,
             .inputs_max = 5,
             .differentiability = Differentiability::Differentiable,
             .infer = infer_attention,
             .vjp = attention_vjp,
             .flops = attention_flops,
             .work = Work::MatMul,
             .about =
                 "q[..,M,D], k[..,D,N], v[..,N,E], bias?, keep (bool)? -> [..,M,E]: softmax(q k) v, with "
                 "trans_b k[..,N,D]; scores are times alpha, plus bias, and value where not keep, before the "
                 "softmax along N; zero_rows: where nothing is kept it is 0, not NaN; bias and keep "
                 "broadcast to [..,M,N]; no cotangent of the bias"});
  table.add({.kind = OpKind::AttentionGrad,
             .family = Family::MatMul,
             .inputs_min = 4,
             .inputs_max = 6,
             .differentiability = Differentiability::Refused,
             .infer = infer_attention_grad,
             .flops = attention_grad_flops,
             .work = Work::MatMul,
             .about = "dy, q, k, v, bias?, keep? -> dq, dk, dv; attributes of Attention"});
}

}  // namespace weft::dag
