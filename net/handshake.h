// A TLS handshake over a transport that does not block, a turn at a time. Internal to net/.
#pragma once

#include "base/result.h"
#include "net/tls.h"

namespace weft::net {

struct HandshakeTurn {
  enum class State : uint8_t { Waits, Done, Failed } state = State::Waits;
  bool is_write_blocked = false;  // with Done: its last bytes have yet to go, and the transport says when
  Error error{};                  // with Failed
};
// What can be done at once. Where it waits the transport is armed for what it waits for.
HandshakeTurn take_handshake_turn(Tls& tls);

}  // namespace weft::net
