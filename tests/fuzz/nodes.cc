#include "tests/fuzz/targets.h"
#include "tests/onnx/operator_cases.h"

namespace weft::fuzz {

// Two bytes name the case; each four that follow are a change of one of its nodes.
void nodes(std::span<const std::byte> bytes) {
  constexpr size_t kChangesMax = 8;
  if (bytes.size() < 2) return;
  const auto& cases = weft::onnx::testing::operator_cases();
  const auto at = [&](size_t i) { return static_cast<int>(bytes[i]); };
  auto model = cases[static_cast<size_t>(at(0) + 256 * at(1)) % cases.size()].model;
  for (size_t i = 2; i + 4 <= bytes.size() && i < 2 + 4 * kChangesMax; i += 4) {
    const auto mutation =
        static_cast<weft::onnx::testing::Mutation>(at(i + 1) % weft::onnx::testing::kMutationCount);
    (void)weft::onnx::testing::mutate(model, at(i), mutation, at(i + 2), at(i + 3));
  }
  (void)weft::onnx::testing::use_model(model);
}

}  // namespace weft::fuzz
