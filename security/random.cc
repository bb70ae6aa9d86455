#include <openssl/rand.h>

#include "base/check.h"
#include "security/token.h"

namespace weft::security {

void fill_random(std::span<uint8_t> out) {
  // Without randomness nothing here is worth anything: there is no way to go on.
  WEFT_CHECK_MSG(RAND_bytes(out.data(), static_cast<int>(out.size())) == 1, "the system gave no randomness");
}

}  // namespace weft::security
