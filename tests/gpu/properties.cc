#include "tests/gpu/properties.h"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

namespace weft::test {
namespace {

Result<std::string> ask(const char* symbol, int device) {
  std::error_code error;
  const std::filesystem::path path =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "weft_gpu_properties.so";
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return fail(ErrorCode::Unsupported, why == nullptr ? path.string() + " does not open" : std::string(why));
  }
  const auto function = reinterpret_cast<PropertiesFunction>(::dlsym(library, symbol));
  if (function == nullptr) return fail(ErrorCode::Unsupported, path.string() + " is another library");
  std::vector<char> text(1 << 22);
  const int status = function(device, text.data(), static_cast<int>(text.size()));
  if (status != 0) return fail(ErrorCode::Unsupported, text.data());
  return std::string(text.data());
}

}  // namespace

Result<std::string> device_properties(int device) { return ask(kPropertiesSymbol, device); }
Result<std::string> device_convolutions(int device) { return ask(kConvolutionsSymbol, device); }

}  // namespace weft::test
