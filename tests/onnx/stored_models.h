// Models with weights in fewer bits, for tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {

inline constexpr int32_t kFloat16 = 10, kUint8 = 2, kInt8 = 3, kUint4 = 21, kInt4 = 22;

inline pb::TensorProto& add_raw(ModelMaker& maker, const std::string& name, const std::vector<int64_t>& dims,
                                int32_t type, const std::string& bytes) {
  pb::TensorProto& proto = *maker.graph().add_initializer();
  proto.set_name(name);
  proto.set_data_type(type);
  for (const int64_t dim : dims) proto.add_dims(dim);
  proto.set_raw_data(bytes);
  return proto;
}
inline pb::TensorProto& add_tensor(ModelMaker& maker, const std::string& name, const dag::Tensor& tensor) {
  const auto bytes = tensor.bytes();
  return add_raw(maker, name, tensor.shape(),
                 tensor.dtype() == dag::DType::F16 ? kFloat16 : pb::TensorProto::FLOAT,
                 std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}
inline std::string random_bytes(size_t count, uint64_t seed) {
  Rng rng(seed, /*stream=*/3);
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += static_cast<char>(rng.below(256));
  return bytes;
}
inline int nibble(const std::string& bytes, size_t i) {
  return static_cast<uint8_t>(bytes[i / 2]) >> (i % 2 * 4) & 15;
}
inline void expect_near(const std::vector<double>& have, const std::vector<double>& want,
                        double tolerance = 1e-5) {
  ASSERT_EQ(have.size(), want.size());
  for (size_t i = 0; i < have.size(); ++i) ASSERT_NEAR(have[i], want[i], tolerance) << "element " << i;
}

inline dag::Tensor drawn(const dag::Shape& shape, uint64_t seed) {
  Rng rng(seed, /*stream=*/4);
  dag::Tensor tensor({dag::DType::F32, shape});
  for (float& number : tensor.mutable_as<float>()) number = static_cast<float>(2 * rng.uniform() - 1);
  return tensor;
}

}  // namespace weft::onnx::testing
