// Which ops of real models a GPU would leave to the host: of networks that people train at their real sizes
// (models/), of every family of torchvision's models and of those of tests/numerics, forward and backward.
// Asked without a GPU, as `weft inspect --device cuda` does.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/coverage_report.h"
#include "peer/backend/reference/reference_kernels.h"
#include "tests/cuda/packed_model.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> models() {
  std::vector<std::string> paths = test::real_models();
  for (const auto& entry : fs::recursive_directory_iterator("tests/numerics"))
    if (entry.path().string().ends_with(".onnx.gz")) paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

class Coverage : public testing::TestWithParam<std::string> {};

TEST_P(Coverage, EveryOpOfTrainingHasAKernel) {
  const auto model = test::read_packed(GetParam());
  ASSERT_TRUE(model.has_value()) << model.error().message;
  onnx::ImportOptions options;
  options.evaluate = peer::evaluate_reference;
  options.training = true;
  options.batch = 4;
  auto left = cli::ops_left_to_host(*model, options);
  ASSERT_TRUE(left.has_value()) << left.error().message;
  for (const auto& [name, count] : *left)
    ADD_FAILURE() << name << " x" << count << " is computed by the host";
}

INSTANTIATE_TEST_SUITE_P(Models, Coverage, testing::ValuesIn(models()), [](const auto& p) {
  std::string name;
  for (const char c : fs::path(p.param).lexically_relative("tests").string())
    name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name.substr(0, name.size() - 8);
});

}  // namespace
}  // namespace weft
