// Which of the instruction sets that loops are compiled for this processor has.
#pragma once

#include <string_view>

namespace weft {

// "baseline" (whatever the compiler takes for granted), "v3" and "v4": x86-64-v3 and x86-64-v4 as the psABI
// names them, with AVX2 and with AVX-512. False for another name, and for all but the first elsewhere.
bool has_instruction_set(std::string_view name);

}  // namespace weft
