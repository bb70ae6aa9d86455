// Random ops: draws are counter-based, a function of (seed, step, key, element's place in the batch).
#include "dag/ops/common.h"

namespace weft::dag {
namespace {

using namespace ops;

Specs infer_dropout(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY_STATUS(need_float(c, 0));
  const double ratio = c.attributes.get_double(Attr::Ratio);
  if (!(ratio >= 0 && ratio < 1))
    return refuse("attribute ratio is " + std::to_string(ratio) + ", want [0,1)");
  WEFT_TRY_STATUS(int_in(c, Attr::Key, 0, std::numeric_limits<uint32_t>::max()));
  return std::vector<TensorSpec>{c.in(0)};
}

}  // namespace

void add_random_ops(OpTable& table) {
  table.add({.kind = OpKind::Dropout,
             .family = Family::Random,
             .differentiability = Differentiability::Differentiable,
             .infer = infer_dropout,
             // The same key draws the same mask.
             .vjp = [](VjpContext& c) { give(c, 0, apply(OpKind::Dropout, cotangent(c), c.attributes())); },
             .draws = true,
             .about =
                 "x -> x/(1-ratio) where kept, else 0; ratio: probability of 0, in [0,1); key: which dropout "
                 "this is; the draw of an element is Philox of (seed, step, key, place in the batch)"});
}

}  // namespace weft::dag
