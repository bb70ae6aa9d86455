#include "tests/tidy/tree.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

namespace weft::tidy {
namespace fs = std::filesystem;
namespace {

std::vector<fs::path> files(const std::set<std::string>& endings) {
  std::vector<fs::path> found;
  for (const char* top :
       {"base",  "dag",    "peer",     "data", "configs", "storage", "train", "cli",  "compress", "plan",
        "proto", "broker", "security", "net",  "web",     "sim",     "serve", "text", "ui",       "replicas"})
    if (fs::exists(root() / top))
      for (const auto& entry : fs::recursive_directory_iterator(root() / top))
        if (endings.contains(entry.path().extension().string()))
          found.push_back(fs::relative(entry.path(), root()));
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

const fs::path& root() {
  static const fs::path kRoot = WEFT_SOURCE_DIR;
  return kRoot;
}

std::vector<fs::path> sources() { return files({".cc", ".h"}); }
std::vector<fs::path> sources_and_kernels() { return files({".cc", ".h", ".cu", ".cuh"}); }

std::string read(const fs::path& path) {
  std::ifstream in(root() / path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace weft::tidy
