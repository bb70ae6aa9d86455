// The files that weft's own code opens, by the linker's --wrap: what it opens behind the back of nobody.
#pragma once

#include <set>
#include <string>

namespace weft::onnx::testing {

// While it lives; one at a time.
class OpenedFiles {
 public:
  OpenedFiles();
  ~OpenedFiles();
  OpenedFiles(const OpenedFiles&) = delete;
  OpenedFiles& operator=(const OpenedFiles&) = delete;

  // What was opened and is no folder, by absolute path.
  const std::set<std::string>& paths() const { return paths_; }
  void add(int descriptor);

 private:
  std::set<std::string> paths_;
};

}  // namespace weft::onnx::testing
