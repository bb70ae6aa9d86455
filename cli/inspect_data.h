// `weft inspect DATA`: what a data set holds, or those that a job reads.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace weft::cli {

// Whether the path is looked at as data, or as a job with data.
bool is_data(const std::filesystem::path& path);
// `format`: text or json. The exit code says whether all samples can be read.
Result<int> inspect_data(const std::filesystem::path& path, const std::string& format);

}  // namespace weft::cli
