// What stands between here and a broker, for people who look for what is wrong. Everything waits within the
// call, up to its deadline, and shows the other side nothing but that somebody asks.
#pragma once

#include <string>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "base/units.h"
#include "net/endpoint.h"

namespace weft::net {

// The addresses of a name, each once, in the order in which they are dialled. An address is its own. A name
// server that does not answer keeps a thread beyond the deadline. Errors: NotFound, Timeout, Unavailable.
Result<std::vector<Endpoint>> resolve(const Endpoint& endpoint, Duration deadline);

// How long it takes to be connected to an address, no name. Errors: Unavailable (refused, no route),
// PermissionDenied (this machine does not let it out), Timeout.
Result<Duration> connect_time(const Endpoint& address, Duration deadline);

// Who answers at an address. A broker shows an Ed25519 key by TLS, and so do peers; what else answers is in
// the way: a login page, a proxy that reads TLS, another program's port.
struct Answerer {
  enum class Kind : uint8_t { Weft, OtherTls, Http, Other, Silent };
  Kind kind = Kind::Silent;
  PeerId key{};        // Weft
  std::string says{};  // for people, one line: whose certificate; the status line; the first bytes
};
Result<Answerer> who_answers(const Endpoint& address, Duration deadline);

}  // namespace weft::net
