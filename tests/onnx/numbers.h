// One-node models and tensors for tests that compare with numbers printed elsewhere.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "tests/onnx/models.h"

namespace weft::onnx::testing {

using dag::Shape;
using dag::Tensor;
using Numbers = std::vector<double>;
using Setting = std::function<void(pb::NodeProto&)>;

inline int64_t count_of(const Shape& shape) {
  return dag::TensorSpec{dag::DType::F32, shape}.element_count();
}

// -5, 2, -2, 5, 1, ...: what the expected numbers below were made from.
inline Tensor mixed(const Shape& shape) {
  Numbers values;
  for (int64_t i = 0; i < count_of(shape); ++i) values.push_back(static_cast<double>(i * 7 % 11 - 5));
  return dag::from_doubles({dag::DType::F32, shape}, values);
}
// 1, 2, 3, ...
inline Tensor counting(const Shape& shape) {
  Numbers values(static_cast<size_t>(count_of(shape)));
  std::iota(values.begin(), values.end(), 1);
  return dag::from_doubles({dag::DType::F32, shape}, values);
}

inline pb::TensorProto& floats(ModelMaker& maker, const std::string& name, const Numbers& values) {
  pb::TensorProto& tensor = maker.weight(name, {static_cast<int64_t>(values.size())});
  tensor.clear_float_data();
  tensor.clear_raw_data();
  for (const double value : values) tensor.add_float_data(static_cast<float>(value));
  return tensor;
}

inline Result<ImportedModel> import_as_it_is(ModelMaker& maker) {
  ImportOptions options = training_options();
  options.training = false;
  return import_bytes(maker.bytes(), options);
}

// The value of the model's output y for an input x.
inline Tensor run(ModelMaker& maker, const std::map<std::string, Tensor>& inputs) {
  auto model = import_as_it_is(maker);
  if (!model) {
    ADD_FAILURE() << model.error().message;
    return {};
  }
  auto values = run_graph(model->graph, model->weights, inputs);
  if (!values) {
    ADD_FAILURE() << values.error().message;
    return {};
  }
  return values->at("y");
}

inline void expect_near(const Tensor& y, const Shape& shape, const Numbers& expected) {
  ASSERT_EQ(y.shape(), shape);
  const auto values = to_doubles(y);
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(values[i], expected[i], 4e-6 * (1 + std::abs(expected[i]))) << "element " << i;
}

// And one attribute more.
inline Setting also(Setting setting, const std::string& name, int64_t value) {
  return [=](pb::NodeProto& node) {
    setting(node);
    attribute(node, name, value);
  };
}

}  // namespace weft::onnx::testing
