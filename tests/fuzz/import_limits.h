// An import as fuzzing can afford it: a model of a few KiB may make weft compute for a second, or hold a GiB,
// within the limits that real models need. These are a hundredth of them.
#pragma once

#include "base/check.h"
#include "dag/onnx/import.h"
#include "peer/backend/reference/reference_kernels.h"

namespace weft::fuzz {

inline onnx::ImportLimits small_limits() {
  onnx::ImportLimits limits;
  limits.weights_bytes_max = 8 << 20;
  limits.expanded_node_count_max = limits.unrolled_node_count_max = 1000;
  limits.expanded_bytes_max = 4 << 20;
  limits.value_bytes_max = 4 << 20;
  limits.folded_value_bytes_max = 64 << 10;
  limits.folded_bytes_max = 1 << 20;
  limits.made_bytes_max = 4 << 20;
  limits.folded_flop_count_max = 4'000'000;
  return limits;
}

inline void import_within_limits(const onnx::OnnxModel& model) {
  onnx::ImportOptions options;
  options.evaluate = peer::evaluate_reference;
  options.limits = small_limits();
  options.batch = 2;
  options.training = true;
  const auto imported = onnx::import_model(model, options, dag::op_table());
  if (!imported) {
    WEFT_CHECK(!imported.error().message.empty());
    return;
  }
  for (const dag::Op& op : imported->graph.ops())
    if (op.kind == dag::OpKind::Initializer)
      WEFT_CHECK(imported->weights.contains(op.attributes.get_string(dag::Attr::Name)));
}

}  // namespace weft::fuzz
