// A connection of plain bytes to somewhere else, for protocols that are not weft's own (HTTP); the other side
// of byte_listener.h.
#pragma once

#include <functional>
#include <memory>

#include "base/result.h"
#include "base/units.h"
#include "net/endpoint.h"
#include "net/loop.h"
#include "net/transport.h"

namespace weft::net {

// An attempt that is under way. Destroying it ends it without a call.
class ByteDial {
 public:
  virtual ~ByteDial() = default;
};

// Looks the name up and tries its addresses, one after another, within the deadline. Calls back once on the
// loop, and not before this returns; the call may destroy the ByteDial. Errors: Unavailable (refused, no such
// name), Timeout.
std::unique_ptr<ByteDial> connect_bytes(Loop& loop, const Endpoint& endpoint, Duration deadline,
                                        std::function<void(Result<TransportPtr>)> on_result);

}  // namespace weft::net
