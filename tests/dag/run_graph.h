// A graph on the reference kernels, in double, from numbers by the names of inputs and initializers.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "dag/graph.h"
#include "dag/op_table.h"
#include "peer/backend/reference/reference_kernels.h"

namespace weft::dag {

using Inputs = std::map<std::string, std::vector<double>>;

// The output of one role, and of that name where there are several.
inline std::vector<double> run(const Graph& graph, const Inputs& inputs, OutputRole role,
                               std::string_view name = {}) {
  std::vector<peer::RefValue> values(graph.values().size());
  const auto place = [&](ValueId value, const std::string& of) {
    const TensorSpec& spec = graph.spec(value);
    values[value.index] = peer::ref_from_tensor(from_doubles(spec, inputs.at(of)));
  };
  for (const ValueId input : graph.inputs()) place(input, graph.value(input).name);
  for (const Initializer& initializer : graph.initializers()) place(initializer.value, initializer.name);
  for (const Op& op : graph.ops()) {
    if (op.kind == OpKind::Input || op.kind == OpKind::Initializer) continue;
    if (op.kind == OpKind::Constant) {
      values[op.outputs[0].index] = peer::ref_from_tensor(graph.constant(op));
      continue;
    }
    std::vector<const peer::RefValue*> operands;
    for (const ValueId input : op.inputs) operands.push_back(input.valid() ? &values[input.index] : nullptr);
    std::vector<peer::RefValue> results;
    for (const ValueId output : op.outputs) results.push_back({graph.spec(output), {}, {}});
    EXPECT_TRUE(peer::run_reference_op(op, operands, results, {}).has_value()) << to_string(op.kind);
    for (size_t k = 0; k < results.size(); ++k) values[op.outputs[k].index] = std::move(results[k]);
  }
  return values[graph.find_output(role, name)->value.index].reals;
}

}  // namespace weft::dag
