// A model of floats alone, which can be spoilt.
#pragma once

#include <string>
#include <utility>

#include "tests/pipeline/one_run.h"

namespace weft::pipeline {

inline test::Model perceptron() {
  dag::GraphBuilder builder(dag::op_table());
  test::Model model;
  const auto input = [&](const std::string& name, Tensor tensor, dag::InputRole role) {
    const dag::ValueId value = builder.input(name, tensor.spec(), role);
    model.inputs.emplace(name, std::move(tensor));
    return value;
  };
  dag::ValueId value = input("x", test::random_tensor(3, 1, {kMicrobatchSize, 12}), dag::InputRole::Model);
  for (uint64_t layer = 0; layer < 4; ++layer) {
    Tensor weight = test::random_tensor(3, 2 + layer, {12, 12}, 0.3);
    const std::string name = "w" + std::to_string(layer);
    const dag::ValueId read = builder.initializer(name, weight.spec(), dag::InitializerRole::Parameter);
    model.weights.emplace(name, std::move(weight));
    value = builder.add(dag::OpKind::MatMul, {value, read});
    if (layer < 3) value = builder.add(dag::OpKind::Relu, {value});
  }
  const dag::ValueId target = input(std::string(dag::kTargetInput),
                                    test::random_labels(3, 9, {kMicrobatchSize}, 12), dag::InputRole::Loss);
  builder.output("loss",
                 builder.add(dag::OpKind::CrossEntropy, {value, target},
                             {{dag::Attr::Axis, int64_t{1}}, {dag::Attr::Reduction, std::string("mean")}}),
                 dag::OutputRole::Loss);
  model.graph = builder.finish();
  return model;
}

}  // namespace weft::pipeline
