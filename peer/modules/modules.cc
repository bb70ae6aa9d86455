#include "peer/modules/modules.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>

namespace weft::peer {
namespace {

namespace fs = std::filesystem;

std::string list(const std::vector<fs::path>& folders) {
  std::string text;
  for (const fs::path& folder : folders) text += (text.empty() ? "" : ", ") + folder.string();
  return text.empty() ? "no folder at all" : text;
}

// What the loader says names the library that is not there: "libcudnn.so.9: cannot open shared object file".
tl::unexpected<Error> does_not_open(const fs::path& path, std::string_view name, const std::string& why) {
  std::string message = path.string() + " does not open: " + why;
  const bool is_none =
      why.find("invalid ELF header") != std::string::npos || why.find("file too short") != std::string::npos;
  if (is_none)
    message += "\nthat file is no library: build it again, or copy it from where it was built";
  else if (name == "cuda")
    message +=
        "\nit needs the CUDA 13 runtime libraries (cuBLASLt, NVRTC) and cuDNN 9, and an NVIDIA driver 580 or "
        "newer";
  return fail(ErrorCode::Unsupported, message);
}

Result<const BackendModule*> open_at(const fs::path& path, std::string_view name) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return does_not_open(path, name, why == nullptr ? "no reason was given" : why);
  }
  const auto* module = static_cast<const BackendModule*>(::dlsym(library, kModuleSymbol));
  if (module == nullptr)
    return fail(ErrorCode::VersionMismatch,
                path.string() + " is no module of weft: it has no " + kModuleSymbol);
  if (module->format != BackendModule::kFormat || build_id() != module->build_id)
    return fail(ErrorCode::VersionMismatch, path.string() + " was built with another weft" +
                                                (module->format == BackendModule::kFormat
                                                     ? " (" + std::string(module->build_id) +
                                                           "; this one is " + std::string(build_id()) + ")"
                                                     : "") +
                                                ": take the two from one build");
  return module;
}

}  // namespace

std::string_view build_id() { return WEFT_BUILD_ID; }

std::vector<fs::path> module_folders() {
  std::vector<fs::path> folders;
  if (const char* given = std::getenv("WEFT_MODULES"); given != nullptr && *given != '\0') {
    std::istringstream all(given);
    for (std::string one; std::getline(all, one, ':');)
      if (!one.empty()) folders.emplace_back(one);
    return folders;
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return folders;
  folders.push_back(program.parent_path());
  folders.push_back((program.parent_path() / "../lib/weft").lexically_normal());
  return folders;
}

Result<const BackendModule*> open_module(std::string_view name, const std::vector<fs::path>& folders) {
  static std::mutex mutex;
  static std::map<fs::path, const BackendModule*> open;
  const std::lock_guard lock(mutex);
  const std::string file = "weft_backend_" + std::string(name) + ".so";
  for (const fs::path& folder : folders) {
    const fs::path path = folder / file;
    if (const auto known = open.find(path); known != open.end()) return known->second;
    std::error_code error;
    if (!fs::exists(path, error)) continue;
    WEFT_TRY(const BackendModule* module, open_at(path, name));
    return open[path] = module;
  }
  return fail(ErrorCode::NotFound, "this weft has no " + std::string(name) + " backend: there is no " + file +
                                       " in " + list(folders) +
                                       "\nbuild it where nvcc and cuDNN 9 are (`./dev build` says so), " +
                                       "or say where it is in WEFT_MODULES");
}

}  // namespace weft::peer
