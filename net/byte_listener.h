// A port whose connections are plain bytes, for protocols that are not weft's own (HTTP): no key is shown
// here, and no limit held. Who opens it counts connections, and bounds what they cost.
#pragma once

#include <functional>
#include <memory>

#include "net/census.h"
#include "net/endpoint.h"
#include "net/loop.h"
#include "net/transport.h"

namespace weft::net {

class ByteListener {
 public:
  using OnConnection = std::function<void(TransportPtr transport, const AddressKey& from)>;

  // Called on the loop for each connection; destroying the transport closes it. Port 0 takes a free one.
  // Errors: Unavailable (in use), PermissionDenied, InvalidArgument.
  static Result<std::unique_ptr<ByteListener>> open(Loop& loop, const Endpoint& endpoint,
                                                    OnConnection on_connection);
  virtual ~ByteListener() = default;
  virtual Endpoint endpoint() const = 0;  // as bound
};

}  // namespace weft::net
