// A model of floats alone: matrices with relu between them, and a class for each sample.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dag/graph.h"
#include "dag/loss.h"
#include "dag/op_table.h"
#include "tests/support/models.h"

namespace weft::test {

// From widths[0] inputs to as many classes as the last one; matrices "w0", "w1", ...
inline Model layers(int64_t batch, const std::vector<int64_t>& widths, double scale) {
  dag::GraphBuilder builder(dag::op_table());
  Model model;
  const auto input = [&](const std::string& name, dag::Tensor tensor, dag::InputRole role) {
    const dag::ValueId value = builder.input(name, tensor.spec(), role);
    model.inputs.emplace(name, std::move(tensor));
    return value;
  };
  dag::ValueId value = input("x", random_tensor(3, 1, {batch, widths.front()}), dag::InputRole::Model);
  for (uint64_t layer = 0; layer + 1 < widths.size(); ++layer) {
    dag::Tensor weight = random_tensor(3, 2 + layer, {widths[layer], widths[layer + 1]}, scale);
    const std::string name = "w" + std::to_string(layer);
    const dag::ValueId read = builder.initializer(name, weight.spec(), dag::InitializerRole::Parameter);
    model.weights.emplace(name, std::move(weight));
    value = builder.add(dag::OpKind::MatMul, {value, read});
    if (layer + 2 < widths.size()) value = builder.add(dag::OpKind::Relu, {value});
  }
  const dag::ValueId target = input(std::string(dag::kTargetInput),
                                    random_labels(3, 9, {batch}, widths.back()), dag::InputRole::Loss);
  builder.output("loss",
                 builder.add(dag::OpKind::CrossEntropy, {value, target},
                             {{dag::Attr::Axis, int64_t{1}}, {dag::Attr::Reduction, std::string("mean")}}),
                 dag::OutputRole::Loss);
  model.graph = builder.finish();
  return model;
}

}  // namespace weft::test
