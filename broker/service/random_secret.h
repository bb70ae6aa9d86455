#pragma once

#include "proto/messages.h"
#include "security/token.h"

namespace weft::broker {

// From the system's randomness.
inline proto::Secret random_secret() {
  proto::Secret secret;
  security::fill_random(secret);
  return secret;
}

}  // namespace weft::broker
