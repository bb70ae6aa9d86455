// A folder of its own for each test, empty at its start, under the build's tmp/, and files in it.
// The program's CMakeLists.txt defines WEFT_TEST_TMP.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

namespace weft::test {

inline std::filesystem::path scratch_folder() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  auto name = std::string(info->test_suite_name()) + "." + info->name() + "." + std::to_string(::getpid());
  for (char& c : name)
    if (c == '/') c = '_';
  return std::filesystem::path(WEFT_TEST_TMP) / name;
}

class Scratch {
 public:
  Scratch() : folder_(scratch_folder()) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  std::filesystem::path write(const std::string& name, std::span<const std::byte> bytes) const {
    return write(name, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace weft::test
