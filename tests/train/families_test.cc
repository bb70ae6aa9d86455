// Two steps of a small form of every family of torchvision's models, against PyTorch's losses.
#include <gtest/gtest.h>

#include <cmath>

#include "peer/backend/reference/reference_backend.h"
#include "tests/backend/cpu.h"
#include "tests/train/family_steps.h"

namespace weft {
namespace {

class Families : public testing::TestWithParam<std::string> {};

TEST_P(Families, TwoStepsAsPyTorch) {
  const auto backend = peer::cpu(2);
  const std::vector<double> losses = two_family_steps(GetParam(), *backend);
  expect_near_pytorch(GetParam(), losses);
}

TEST_P(Families, TwoStepsInDouble) {
  const nlohmann::json& entry = family_losses().at(GetParam());
  const auto backend = peer::make_reference_backend();
  const std::vector<double> losses = two_family_steps(GetParam(), *backend);
  for (size_t i = 0; i < losses.size(); ++i) {
    const double exact = entry.at("float64")[i];
    EXPECT_NEAR(losses[i], exact, 1e-7 * exact) << "step " << i + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Torchvision, Families, testing::ValuesIn(families()),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace weft
