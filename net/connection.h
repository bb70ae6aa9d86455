// A TLS 1.3 connection between two keys, carrying frames both ways. It exists once both sides have shown the
// keys that were expected; what the other side is allowed to do is decided above, by its PeerId.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/digest.h"
#include "base/result.h"
#include "base/units.h"
#include "net/dial_policy.h"
#include "net/endpoint.h"
#include "net/frame.h"
#include "net/loop.h"
#include "net/shaper.h"
#include "security/identity.h"

namespace weft::net {

struct ConnectionLimits {
  size_t frame_size_max = 64 << 10;  // bytes of payload received; raised once the other side is known
  // Bytes, each frame counted with the memory that it takes itself; beyond it the connection is closed
  // (ResourceExhausted).
  size_t send_queue_max = 1 << 30;
  // Bytes in the system's buffer that have not left this machine, about; 0: as many as it likes. What is sent
  // later, and is more urgent, waits behind them.
  size_t unsent_max = 0;
};

struct ConnectionStats {
  uint64_t bytes_sent = 0, bytes_received = 0;  // of frames, headers included
  uint64_t frames_sent = 0, frames_received = 0;
  size_t bytes_queued = 0;  // given to send() and not yet given to the system
  // Of that, memory that nobody else holds: heads, and the frames themselves. Bodies have their owners.
  size_t memory_queued = 0;
};

// Belongs to one loop. Closed when the last shared_ptr goes, or by close().
class Connection {
 public:
  struct Handlers {
    std::function<void(InFrame)> on_frame;
    std::function<void(const Error&)>
        on_closed;                       // once, never from within send() or close(); not after close()
    std::function<void()> on_drained{};  // the send queue has become empty
    // From the first kFrameHeadSize bytes of a payload, or all of a shorter one: where it goes. Nothing:
    // every payload is collected, in memory that is taken as bytes come. An error closes the connection with
    // it.
    std::function<Result<PayloadPlace>(uint8_t kind, size_t payload_size, std::span<const std::byte> head)>
        on_head{};
  };
  virtual ~Connection() = default;

  virtual const PeerId& remote() const = 0;
  virtual std::string remote_address() const = 0;  // for logs: "192.0.2.1:4711", "relay"
  // This side's; empty once it has closed. Behind a NAT the other side sees another one.
  virtual std::string local_address() const { return {}; }
  virtual void set_limits(const ConnectionLimits& limits) = 0;

  // Begins to read. Frames that came before wait in the socket. Called once.
  virtual void start(Handlers handlers) = 0;
  // Queues; returns at once. Frames are sent in order, those that go first before the others. After the
  // connection has closed it does nothing.
  virtual void send(OutFrame frame) = 0;
  // Stops and resumes reading: how a receiver that is full slows the sender down.
  virtual void pause_reading(bool paused) = 0;
  // Sends what is queued, says goodbye, and closes, all within `deadline`; zero: at once. No handler is
  // called afterwards.
  virtual void close(Duration deadline = Duration::zero()) = 0;

  virtual ConnectionStats stats() const = 0;
  // Bytes given to send() that have not left this machine: here, in the system's buffer, or before the
  // emulated line.
  virtual size_t unsent() const = 0;
};
using ConnectionPtr = std::shared_ptr<Connection>;

// What an attempt ends in: exactly one call, unless the attempt is destroyed first, which cancels it.
using ConnectResult = std::function<void(Result<ConnectionPtr>)>;
class Attempt {
 public:
  virtual ~Attempt() = default;
};

struct ConnectOptions {
  const security::Identity* identity = nullptr;  // must outlive the connection
  PeerId expected{};                             // any other key ends the attempt: PermissionDenied
  Duration deadline = std::chrono::seconds(10);  // name, TCP and TLS together
  std::optional<Shape> shape{};                  // emulated link, both directions as it says
  // Asked right before each address is dialled that the endpoint is or its name has; an error takes the
  // attempt's place. Nothing: any may be.
  std::function<Status(const IpAddress& address, uint16_t port)> may_dial{};
};

// Errors: Unavailable (refused, unreachable, unknown name), Timeout, PermissionDenied (another key than
// expected), Cancelled, what may_dial says where it allows none. Messages name the endpoint.
std::unique_ptr<Attempt> connect(Loop& loop, const Endpoint& endpoint, const ConnectOptions& options,
                                 ConnectResult on_result);

// Through the relay at `relay` (the broker's public port): both peers present the same ticket, one as the TLS
// client
// (`initiates`), one as the server; the relay forwards their bytes and sees only TLS.
struct RelayTicket {
  std::array<uint8_t, 16> bytes{};
  auto operator<=>(const RelayTicket&) const = default;
};
std::unique_ptr<Attempt> connect_by_relay(Loop& loop, const Endpoint& relay, const RelayTicket& ticket,
                                          bool initiates, const ConnectOptions& options,
                                          ConnectResult on_result);

}  // namespace weft::net
