// A sample of a data set that makes what is learnt from it diverge.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace weft::test {

// Writes `value` into the first element of that sample, of a float32 column of an npz file.
Status poison_sample(const std::filesystem::path& npz, const std::string& column, size_t sample, float value);

}  // namespace weft::test
