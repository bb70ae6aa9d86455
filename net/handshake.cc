#include "net/handshake.h"

namespace weft::net {

HandshakeTurn take_handshake_turn(Tls& tls) {
  using State = HandshakeTurn::State;
  const Io io = tls.handshake();
  const bool is_blocked = tls.flush().state == Io::State::Blocked;  // an alert, too
  switch (io.state) {
    case Io::State::Ready:
      if (is_blocked) tls.transport().arm_write();
      return {.state = State::Done, .is_write_blocked = is_blocked};
    case Io::State::Blocked:
      if (is_blocked) tls.transport().arm_write();
      tls.transport().arm_read();
      return {};
    case Io::State::End:
      return {.state = State::Failed, .error = {ErrorCode::Unavailable, "the other side hung up"}};
    case Io::State::Failed:
      break;
  }
  return {.state = State::Failed, .error = tls.error()};
}

}  // namespace weft::net
