// The desks of a gate (gate.h): each does one thing with what connections ask, and keeps what it alone needs
// for that, by the connections' numbers. A desk has no socket and no clock. It is told what came, when a
// connection has room again and when it ends; what it wants done it says to the gate.
#pragma once

#include "broker/events.h"
#include "net/frame.h"

namespace weft::broker {

// Bytes of blobs and data in the queue of one connection: then the next piece waits until some have gone.
inline constexpr size_t kQueuedMax = 4 << 20;

// What desks may do with the gate's connections. For one that has gone nothing is done, and it has no queue.
class Connections {
 public:
  virtual ~Connections() = default;
  virtual size_t bytes_queued(ConnectionId to) const = 0;  // sent, and not taken yet
  virtual void send(ConnectionId to, const proto::Message& message) = 0;
  virtual void send_frame(ConnectionId to, net::OutFrame frame) = 0;
  // Tells it why, and ends it: before this returns, every desk has been told of its end.
  virtual void refuse(ConnectionId which, const Error& why) = 0;
};

}  // namespace weft::broker
