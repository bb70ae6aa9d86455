// What this build has in it; of a file that is generated (write_build.cmake).
#pragma once

#include <span>
#include <string_view>

namespace weft::peer::cuda {

// For which cards the kernels were compiled, and from which PTX a driver may translate them: 86 is 8.6.
std::span<const int> machine_code_built_in();
std::span<const int> ptx_built_in();

// Of the kernels' sources, of what generates and launches them, and of their compiler: equal digests, equal
// code.
std::string_view code_digest();

}  // namespace weft::peer::cuda
