#include "tests/onnx/opened_files.h"

#include <fcntl.h>

#include <cstdarg>
#include <filesystem>

namespace weft::onnx::testing {
namespace {
OpenedFiles* current = nullptr;
}

OpenedFiles::OpenedFiles() { current = this; }
OpenedFiles::~OpenedFiles() { current = nullptr; }
void OpenedFiles::add(int descriptor) {
  std::error_code gone;
  const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), gone);
  paths_.insert(gone ? "?" : path.string());
}

}  // namespace weft::onnx::testing

namespace {

int noted(int descriptor, int flags) {
  if (descriptor >= 0 && (flags & O_DIRECTORY) == 0 && weft::onnx::testing::current != nullptr)
    weft::onnx::testing::current->add(descriptor);
  return descriptor;
}

int mode_of(int flags, va_list arguments) { return (flags & O_CREAT) != 0 ? va_arg(arguments, int) : 0; }

}  // namespace

extern "C" {
int __real_open(const char* path, int flags, ...);
int __real_openat(int folder, const char* path, int flags, ...);
int __wrap_open(const char* path, int flags, ...);
int __wrap_openat(int folder, const char* path, int flags, ...);

int __wrap_open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = mode_of(flags, arguments);
  va_end(arguments);
  return noted(__real_open(path, flags, mode), flags);
}
int __wrap_openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = mode_of(flags, arguments);
  va_end(arguments);
  return noted(__real_openat(folder, path, flags, mode), flags);
}
}
