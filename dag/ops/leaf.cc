// Leaves: values that come from outside the graph. GraphBuilder makes them, with the spec that it is told.
#include "dag/ops/common.h"

namespace weft::dag {
namespace {

ops::Specs leaf_infer(const ShapeContext&) {
  return ops::refuse("leaves have no shape rule: GraphBuilder's input, initializer and constant make them");
}

void add_leaf(OpTable& table, OpKind kind, std::string_view about) {
  table.add({.kind = kind,
             .family = Family::Leaf,
             .inputs_min = 0,
             .inputs_max = 0,
             .differentiability = Differentiability::Zero,
             .infer = leaf_infer,
             .flops = ops::no_flops,
             .about = about});
}

}  // namespace

void add_leaf_ops(OpTable& table) {
  add_leaf(table, OpKind::Input, "() -> value; name: what the step feeds, by name");
  add_leaf(table, OpKind::Initializer,
           "() -> value; name: a weight or buffer that lives between steps, by name");
  add_leaf(table, OpKind::Constant, "() -> value; value: an index into the graph's constants");
}

}  // namespace weft::dag
