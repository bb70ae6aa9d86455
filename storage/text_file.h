// A whole file as text: what people and other programs write beside what is ours.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace weft::storage {

// Its bytes, whatever they are. Errors: as of Files::read.
Result<std::string> read_text(const std::filesystem::path& path, uint64_t size_max);

}  // namespace weft::storage
