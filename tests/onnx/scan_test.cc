#include "dag/onnx/scan.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {

std::span<const std::byte> as_span(const std::string& bytes) {
  return std::as_bytes(std::span(bytes.data(), bytes.size()));
}

TEST(Scan, CountsWhatTheModelHolds) {
  const auto counts = scan_model(as_span(linear_model().bytes()), {});
  ASSERT_TRUE(counts.has_value()) << counts.error().message;
  EXPECT_EQ(counts->nodes, 3);
  EXPECT_EQ(counts->tensors, 2);
  EXPECT_EQ(counts->attributes, 0);
  EXPECT_GE(counts->payload_bytes, 60);
}

TEST(Scan, EveryPrefixOfAModelIsScannedOrRefused) {
  const std::string bytes = linear_model().bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto counts = scan_model(as_span(bytes).first(size), {});
    if (!counts) {
      EXPECT_EQ(counts.error().code, ErrorCode::Corrupted);
    }
  }
}

TEST(Scan, MutatedModelsNeverCrashTheImport) {
  const std::string bytes = linear_model().bytes();
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 1);
    std::string mutated = bytes;
    for (uint64_t i = 0, count = 1 + rng.below(4); i < count; ++i)
      mutated[rng.below(mutated.size())] = static_cast<char>(rng.next_u32());
    if (rng.below(4) == 0) mutated.erase(rng.below(mutated.size()), 1 + rng.below(8));
    ImportOptions options = training_options();
    options.limits.value_bytes_max = 1 << 20;
    (void)import_bytes(mutated, options);
  }
}

TEST(Scan, AFileIsReadThroughAWindow) {
  ModelMaker maker = linear_model();
  maker.weight("large", {512, 512});
  const std::string bytes = maker.bytes();
  int64_t bytes_read = 0;
  const auto counts =
      scan_model(static_cast<int64_t>(bytes.size()),
                 [&](int64_t offset, std::span<std::byte> target) -> Status {
                   bytes_read += static_cast<int64_t>(target.size());
                   std::copy_n(as_span(bytes).begin() + offset, target.size(), target.begin());
                   return {};
                 },
                 {});
  ASSERT_TRUE(counts.has_value());
  EXPECT_LT(bytes_read, 100'000) << "tensor data is jumped over";
}

}  // namespace
}  // namespace weft::onnx::testing
