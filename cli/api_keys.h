// Keys of callers of the OpenAI API, in files of people.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace weft::cli {

// One key a line; empty lines and those that begin with # say nothing. At least one. Errors: of reading,
// InvalidArgument for a file without a key.
Result<std::vector<std::string>> read_api_keys(const std::string& path);

}  // namespace weft::cli
