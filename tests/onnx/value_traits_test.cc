// What the values of a tensor tell: zeros, ones, rows that repeat.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "dag/onnx/analysis.h"
#include "tests/onnx/judged.h"

namespace weft::onnx::testing {
namespace {

TEST(ValueTraits, AreThoseOfTheWholeTensorHoweverItsBytesCome) {
  Rng rng(7, 1);
  for (int round = 0; round < 300; ++round) {
    dag::Shape shape;
    for (uint64_t d = rng.next_u64() % 4 + 1; d > 0; --d)
      shape.push_back(static_cast<int64_t>(rng.next_u64() % 5 + 1));
    const dag::TensorSpec spec{dag::DType::F32, shape};
    std::vector<float> values(static_cast<size_t>(spec.element_count()));
    // Constant along the axes that are drawn.
    const uint64_t along = rng.next_u64() % 16;
    const uint64_t base = rng.next_u64() % 3;
    for (size_t i = 0; i < values.size(); ++i) {
      size_t rest = i, key = base;
      for (size_t d = shape.size(); d-- > 0;) {
        const size_t place = rest % static_cast<size_t>(shape[d]);
        rest /= static_cast<size_t>(shape[d]);
        if ((along >> d & 1) == 0) key = key * 7 + place;
      }
      values[i] = round % 2 ? static_cast<float>(key) : static_cast<float>(key % 2);
    }
    if (round % 5 == 0) values[values.size() / 2] = -1e4f;
    const dag::Tensor tensor = dag::make_tensor(shape, std::span<const float>(values));
    ValueReader reader(spec);
    for (size_t at = 0; at < tensor.bytes().size();) {
      const size_t size = std::min<size_t>(tensor.bytes().size() - at, (rng.next_u64() % 9 + 1) * 4);
      reader.add(tensor.bytes().subspan(at, size));
      at += size;
    }
    const ValueTraits traits = reader.traits();
    EXPECT_EQ(traits.low, round % 5 == 0);
    EXPECT_EQ(traits.all_equal, std::ranges::count(values, values[0]) == std::ssize(values));
    std::optional<int> constant;
    for (size_t d = 0, block = values.size(); d < shape.size() && !constant; ++d) {
      const size_t inner = block / static_cast<size_t>(shape[d]);
      bool equal = shape[d] > 1;
      for (size_t i = 0; i < values.size(); ++i)
        if (i % block >= inner) equal = equal && values[i] == values[i - inner];
      if (equal) constant = static_cast<int>(d);
      block = inner;
    }
    EXPECT_EQ(traits.constant_axis, constant) << to_string(spec);
  }
}

TEST(ValueTraits, AHalfIsLowWhereItsNumberIs) {
  for (const dag::DType dtype : {dag::DType::F16, dag::DType::BF16, dag::DType::F32, dag::DType::F64}) {
    const auto low = [&](double value) {
      return traits_of(dag::from_doubles({dtype, {2}}, std::vector<double>{1, value})).low;
    };
    EXPECT_TRUE(low(-10000) && low(-30000) && low(-std::numeric_limits<double>::infinity()));
    EXPECT_FALSE(low(-9000) || low(10000) || low(30000) || low(0) || low(std::nan("")));
  }
}

}  // namespace
}  // namespace weft::onnx::testing
