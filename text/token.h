// The number of a token in its vocabulary.
#pragma once

#include <cstdint>

namespace weft::text {

using TokenId = uint32_t;

}  // namespace weft::text
