#include "tests/fuzz/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/check.h"

namespace weft::fuzz {
namespace {

void write_all(int descriptor, std::span<const std::byte> bytes) {
  WEFT_CHECK(descriptor >= 0);
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    WEFT_CHECK_MSG(written > 0, "no room for an input");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

}  // namespace

MemoryFile::MemoryFile(std::span<const std::byte> bytes) : descriptor_(::memfd_create("input", MFD_CLOEXEC)) {
  write_all(descriptor_, bytes);
}
MemoryFile::~MemoryFile() { ::close(descriptor_); }
std::filesystem::path MemoryFile::path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

Folder::Folder() {
  std::string name = std::filesystem::temp_directory_path() / "weft-fuzz-XXXXXX";
  WEFT_CHECK_MSG(::mkdtemp(name.data()) != nullptr, "no folder for inputs");
  path_ = name;
}
Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}
std::filesystem::path Folder::write(const char* name, std::span<const std::byte> bytes) const {
  const std::filesystem::path path = path_ / name;
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  write_all(descriptor, bytes);
  ::close(descriptor);
  return path;
}

}  // namespace weft::fuzz
