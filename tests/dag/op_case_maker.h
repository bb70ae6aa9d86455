// What the op cases are made with.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "tests/dag/op_cases.h"

namespace weft::dag {

using Operands = std::vector<std::optional<Tensor>>;

class OpCaseMaker {
 public:
  explicit OpCaseMaker(uint64_t seed) : rng_(seed, /*stream=*/0x0CA5E5) {}

  OpCase& add(OpKind kind, const std::string& variant, Operands inputs, Attributes attributes = {}) {
    OpCase made;
    made.name = std::string(to_string(kind)) + (variant.empty() ? "" : " " + variant);
    made.kind = kind;
    made.attributes = std::move(attributes);
    made.inputs = std::move(inputs);
    cases_.push_back(std::move(made));
    return cases_.back();
  }
  std::vector<OpCase> take() { return std::move(cases_); }

  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(rng_.below(static_cast<uint64_t>(high - low + 1)));
  }
  Shape shape(int64_t rank, int64_t most = 4) {
    Shape dims;
    for (int64_t d = 0; d < rank; ++d) dims.push_back(between(1, most));
    return dims;
  }

  Tensor real(const Shape& dims, double low = -1, double high = 1) {
    std::vector<double> values(count_of(dims));
    for (double& value : values) value = low + (high - low) * rng_.uniform();
    return from_doubles({DType::F32, dims}, values);
  }
  // Distinct values, at least 0.03 from zero and 0.06 from each other, in random order.
  Tensor apart(const Shape& dims) {
    std::vector<double> values(count_of(dims));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = 0.1 * (static_cast<double>(i) - std::floor(static_cast<double>(values.size()) / 2) + 0.5) +
                  0.04 * (rng_.uniform() - 0.5);
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[rng_.below(i)]);
    return from_doubles({DType::F32, dims}, values);
  }
  Tensor whole(const Shape& dims, int64_t low, int64_t high, DType dtype = DType::I64) {
    std::vector<int64_t> values(count_of(dims));
    for (int64_t& value : values) value = between(low, high);
    return from_int64s({dtype, dims}, values);
  }
  Tensor boolean(const Shape& dims) { return whole(dims, 0, 1, DType::Bool); }
  Tensor floats(const Shape& dims, std::initializer_list<double> values) {
    return from_doubles({DType::F32, dims}, std::vector<double>(values));
  }

 private:
  static size_t count_of(const Shape& dims) {
    return static_cast<size_t>(TensorSpec{DType::F32, dims}.element_count());
  }
  Rng rng_;
  std::vector<OpCase> cases_;
};

void add_elementwise_cases(OpCaseMaker& make);
void add_shape_cases(OpCaseMaker& make);
void add_reduction_cases(OpCaseMaker& make);
void add_matmul_cases(OpCaseMaker& make);
void add_stored_cases(OpCaseMaker& make);
void add_attention_cases(OpCaseMaker& make);
void add_convolution_cases(OpCaseMaker& make);
void add_normalisation_cases(OpCaseMaker& make);
void add_softmax_cases(OpCaseMaker& make);
void add_pooling_cases(OpCaseMaker& make);
void add_random_cases(OpCaseMaker& make);
void add_sampling_cases(OpCaseMaker& make);
void add_recurrent_cases(OpCaseMaker& make);

}  // namespace weft::dag
