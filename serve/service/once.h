// A key by which a caller names a request, so that asking again gives the same answer and not another one.
#pragma once

#include <string>

#include "web/service.h"

namespace weft::serve {

// Digests in hex; empty where there is no key.
struct Once {
  std::string name;   // who asks, under which key
  std::string asked;  // what is asked
};
std::string once_name(const web::Once& once);
Once digest_of(const web::Once& once);

}  // namespace weft::serve
