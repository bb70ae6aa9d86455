// Random ops: draws are counter-based, a function of (seed, step, key, element's place in the batch).
#include <limits>

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

// The two numbers that say what is drawn are operands, so that a model may compute them.
Specs infer_draws(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_float(c, 0));
  WEFT_TRY_STATUS(need_spec(c, 0, c.in(0).dtype, {}));
  WEFT_TRY_STATUS(need_spec(c, 1, c.in(0).dtype, {}));
  WEFT_TRY_STATUS(int_in(c, Attr::Key, 0, std::numeric_limits<uint32_t>::max()));
  WEFT_TRY(TensorSpec spec, spec_of_attribute(c, c.in(0).dtype));
  return std::vector<TensorSpec>{std::move(spec)};
}

void add_draws(OpTable& table, OpKind kind, std::string_view about) {
  table.add({.kind = kind,
             .family = Family::Random,
             .inputs_min = 2,
             .inputs_max = 2,
             .infer = infer_draws,
             .flops = flops_an_output_element<60>,
             .draws = true,
             .about = about});
}

}  // namespace

void add_random_ops(OpTable& table) {
  table.add({.kind = OpKind::Dropout,
             .family = Family::Random,
             .differentiability = Differentiability::Differentiable,
             .infer = infer_dropout,
             // The same key draws the same mask.
             .vjp = [](VjpContext& c) { give(c, 0, apply(OpKind::Dropout, cotangent(c), c.attributes())); },
             .flops = flops_an_output_element<56>,
             .draws = true,
             .about =
                 "x -> x/(1-ratio) where kept, else 0; ratio: probability of 0, in [0,1); key: which dropout "
                 "this is; the draw of an element is Philox of (seed, step, key, place in the batch)"});
  add_draws(
      table, OpKind::RandomUniform,
      "low[], high[] -> shape: low + (high - low) * draw/2^24, the draw's upper 24 bits; key: which op "
      "this is; drawn as Dropout's where the leading dim is the microbatch, else once a step: the same in "
      "every microbatch");
  add_draws(table, OpKind::RandomNormal,
            "mean[], scale[] -> shape: mean + scale * Box-Muller of two draws; key; drawn once a step or by "
            "place in the batch as RandomUniform's");
}

}  // namespace weft::dag
