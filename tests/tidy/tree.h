// The files of the product, as the tests of this folder read them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace weft::tidy {

// Where the checkout lies.
const std::filesystem::path& root();

// Every source and header of the product, from the root, in order.
std::vector<std::filesystem::path> sources();

// Those, and the kernels (.cu, .cuh).
std::vector<std::filesystem::path> sources_and_kernels();

std::string read(const std::filesystem::path& path);

}  // namespace weft::tidy
