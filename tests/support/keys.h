// Keys for peers and users that a test makes up.
#pragma once

#include <cstdint>

#include "base/digest.h"

namespace weft::test {

inline PeerId key(uint8_t n) {
  PeerId id;
  id.digest.bytes[0] = n;
  return id;
}

}  // namespace weft::test
