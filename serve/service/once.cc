#include "serve/service/once.h"

#include "storage/sha256.h"

namespace weft::serve {

std::string once_name(const web::Once& once) {
  return storage::sha256_hex(std::to_string(once.caller.size()) + ":" + once.caller + once.key);
}

Once digest_of(const web::Once& once) { return {once_name(once), storage::sha256_hex(once.asked)}; }

}  // namespace weft::serve
