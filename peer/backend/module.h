// A backend in a library of its own, opened while the program runs, so that `weft` starts where the libraries
// that it needs are not. Program and module share C++ types, so they must be of one build: the id is compared
// before anything else is used. The module's one symbol: `extern "C" const weft::peer::BackendModule
// weft_backend_module`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "peer/backend/backend.h"

namespace weft::peer {

struct ModuleOptions {
  int device = 0;  // which of the machine's
};

struct BackendModule {
  static constexpr uint32_t kFormat = 1;  // of this struct's first two members, for good
  uint32_t format;
  const char* build_id;
  // Errors: Unsupported for a driver or device that is too old, NotFound for one that is not there, with what
  // to install.
  Result<std::unique_ptr<Backend>> (*make)(const ModuleOptions& options);
};

inline constexpr const char* kModuleSymbol = "weft_backend_module";

}  // namespace weft::peer
