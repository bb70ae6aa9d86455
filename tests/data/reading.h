// What the data tests share: reading a column as a tensor, and the text of an error.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace weft::data {

inline dag::Tensor read_column(const Dataset& dataset, std::string_view name,
                               const std::vector<uint32_t>& samples) {
  const auto column = dataset.find_column(name);
  EXPECT_TRUE(column.has_value()) << name;
  if (!column) return {};
  dag::TensorSpec spec = dataset.columns()[*column].sample;
  spec.shape.insert(spec.shape.begin(), static_cast<int64_t>(samples.size()));
  dag::Tensor tensor(spec);
  const auto status = dataset.read(*column, samples, tensor.mutable_bytes());
  EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message);
  return tensor;
}

// The error's code and whether its message holds `part`.
template <typename T>
::testing::AssertionResult fails_with(const Result<T>& result, ErrorCode code, std::string_view part) {
  if (result) return ::testing::AssertionFailure() << "succeeded";
  if (result.error().code == code && result.error().message.find(part) != std::string::npos)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << to_string(result.error().code) << ": " << result.error().message;
}

}  // namespace weft::data
