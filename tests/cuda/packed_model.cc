#include "tests/cuda/packed_model.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "dag/onnx/outline.h"
#include "tests/support/scratch.h"

namespace weft::test {
namespace {
namespace fs = std::filesystem;

constexpr const char* kRealModels = "tests/cuda/models";

bool unpack(const std::string& path, const fs::path& to) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return false;
  std::ofstream out(to, std::ios::binary);
  std::array<char, 65536> part{};
  int got = 0;
  while ((got = gzread(file, part.data(), part.size())) > 0) out.write(part.data(), got);
  return gzclose(file) == Z_OK && got == 0 && out.flush().good();
}

}  // namespace

std::vector<std::string> real_models() {
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(kRealModels))
    if (entry.path().string().ends_with(".onnx.gz")) paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

Result<onnx::OnnxModel> read_packed(const std::string& path) {
  const Scratch scratch;
  const fs::path plain = scratch.folder() / "model.onnx";
  if (!unpack(path, plain)) return fail(ErrorCode::Corrupted, path + " cannot be unpacked");
  return path.starts_with(kRealModels) ? onnx::read_outline(plain) : onnx::read_model(plain);
}

}  // namespace weft::test
