// Opens backends that are libraries of their own (peer/backend/module.h).
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "peer/backend/module.h"

namespace weft::peer {

// Of the interface that program and module share: compiler, its options, and the headers' digest.
std::string_view build_id();

// Where modules are looked for: the folders of WEFT_MODULES, colon by colon, if it is set, else beside the
// program and in ../lib/weft from there.
std::vector<std::filesystem::path> module_folders();

// Opens `weft_backend_<name>.so`, once: it stays open for as long as the process lives.
// Errors: NotFound with the folders that were looked at, VersionMismatch for a module of another build,
// Unsupported for one whose libraries are missing, with the name of what is.
Result<const BackendModule*> open_module(
    std::string_view name, const std::vector<std::filesystem::path>& folders = module_folders());

}  // namespace weft::peer
