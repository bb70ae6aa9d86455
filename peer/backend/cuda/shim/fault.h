// A kernel on the shim did what a GPU would not forgive, or not notice. The block is given up; the launch
// says what it was.
#pragma once

#include <cstdint>

namespace weft::peer::cuda::shim {

[[noreturn]] void fault(const char* what);
[[noreturn]] void fault_index(const char* what, int64_t index, int64_t count);  // index beyond [0, count)

}  // namespace weft::peer::cuda::shim
