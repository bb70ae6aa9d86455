// Which ops of real models a GPU would leave to the host: of every family of torchvision's models and of
// those of tests/numerics, forward and backward. Asked without a GPU, as `weft inspect --device cuda` does.
#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/coverage_report.h"
#include "peer/backend/reference/reference_kernels.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::string gunzip(const fs::path& path) {
  std::string bytes;
  gzFile file = gzopen(path.c_str(), "rb");
  EXPECT_NE(file, nullptr) << path;
  std::array<char, 65536> part{};
  for (int got = 0; file != nullptr && (got = gzread(file, part.data(), part.size())) > 0;)
    bytes.append(part.data(), static_cast<size_t>(got));
  if (file != nullptr) gzclose(file);
  return bytes;
}

std::vector<std::string> models() {
  std::vector<std::string> paths;
  for (const auto& entry : fs::recursive_directory_iterator("tests/numerics"))
    if (entry.path().string().ends_with(".onnx.gz")) paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

class Coverage : public testing::TestWithParam<std::string> {};

TEST_P(Coverage, EveryOpOfTrainingHasAKernel) {
  const std::string bytes = gunzip(GetParam());
  const auto model = onnx::read_model(std::as_bytes(std::span(bytes)));
  ASSERT_TRUE(model.has_value()) << model.error().message;
  onnx::ImportOptions options;
  options.evaluate = peer::evaluate_reference;
  options.training = true;
  options.batch = 4;
  auto left = cli::ops_left_to_host(*model, options);
  ASSERT_TRUE(left.has_value()) << left.error().message;
  for (const auto& [name, count] : *left) ADD_FAILURE() << name << " x" << count << " is computed by the host";
}

INSTANTIATE_TEST_SUITE_P(Models, Coverage, testing::ValuesIn(models()), [](const auto& p) {
  std::string name;
  for (const char c : fs::path(p.param).lexically_relative("tests/numerics").string())
    name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name.substr(0, name.size() - 8);
});

}  // namespace
}  // namespace weft
