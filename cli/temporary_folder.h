// A folder of this process, gone with the object.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "base/result.h"

namespace weft::cli {

class TemporaryFolder {
 public:
  static Result<std::unique_ptr<TemporaryFolder>> make() {
    std::error_code code;
    const std::filesystem::path base = std::filesystem::temp_directory_path(code);
    std::string name = (code ? std::filesystem::path("/tmp") : base) / ("weft-fetch-" + std::string(6, 'X'));
    if (mkdtemp(name.data()) == nullptr)
      return fail(ErrorCode::Unavailable, "no temporary folder can be made in " +
                                              std::filesystem::path(name).parent_path().string() +
                                              ": set TMPDIR to a folder with room for the model");
    return std::unique_ptr<TemporaryFolder>(new TemporaryFolder(name));
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

}  // namespace weft::cli
