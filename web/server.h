// A server of HTTP/1.1, with TLS 1.3 or without, on a thread of its own. It reads requests within limits,
// hands them to a handler, and sends what the handler answers: a whole response, or a stream of server-sent
// events. Which paths there are is the handler's matter.
//
// What a client can make it do is bounded by ServerLimits, each beyond which that client alone is refused or
// closed; docs/SECURITY.md has them as a table. A client that closes its side, even for writing alone, has
// gone: so an abort is seen while its tokens are still being computed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/result.h"
#include "base/units.h"
#include "net/endpoint.h"
#include "web/message.h"
#include "web/request_parser.h"

namespace weft::web {

struct ServerLimits {
  RequestLimits request{};
  size_t connections_max = 4096;
  // Of one IPv4 address or IPv6 /64. At either limit the oldest connection makes room that is between
  // requests and has kept its slot idle: silent for `silent_grace`, or within a head for `slow_grace`. If
  // there is none, the newcomer is closed.
  size_t connections_max_per_address = 1024;
  Duration silent_grace = std::chrono::milliseconds(100);
  Duration slow_grace = std::chrono::seconds(1);

  Duration head_deadline =
      std::chrono::seconds(10);  // from the connection, or a request's first byte; with TLS
  Duration body_deadline = std::chrono::seconds(30);   // from the end of the head
  Duration idle_deadline = std::chrono::seconds(60);   // between requests
  Duration stall_deadline = std::chrono::seconds(30);  // a client that takes nothing of what waits for it
  Duration linger_deadline = std::chrono::seconds(2);  // after a last response, for the client to close
  Duration ping_every = std::chrono::seconds(15);      // a comment in a stream in which nothing else was sent

  size_t bodies_bytes_max = 64 << 20;     // of all requests that are being read; beyond it 503
  size_t pipelined_bytes_max = 64 << 10;  // that wait while a request is answered; beyond it closed
  // Of a stream: what was written and has not left yet. Beyond it the client is too slow, and closed.
  size_t stream_unsent_max = 1 << 20;
  // Of all responses together. Beyond it whoever writes to a stream with more than `stream_unsent_fair` is
  // closed.
  size_t unsent_bytes_max = 256 << 20;
  size_t stream_unsent_fair = 64 << 10;
};

struct ServerOptions {
  net::Endpoint endpoint{.host = "127.0.0.1", .port = 0};
  // PEM files: the chain, and its key. Both empty: without TLS.
  std::string certificate_file{}, key_file{};
  ServerLimits limits{};
};

// Whether this machine alone reaches what listens there, by its name.
bool is_loopback(const net::Endpoint& endpoint);

struct ServerStats {
  uint64_t connections = 0, requests = 0, streams = 0;
  uint64_t refused_by_limit = 0;                     // connections
  uint64_t displaced = 0;                            // connections that made room
  uint64_t timed_out = 0;                            // connections closed by a deadline
  uint64_t refused_requests = 0;                     // by the grammar, the limits, or for want of memory
  uint64_t too_slow = 0;                             // streams closed, for more waited than may
  uint64_t gone = 0;                                 // clients that left before their response had ended
  uint64_t failed = 0;                               // connections that TLS, or the system, has ended
  uint64_t open_connections = 0, open_requests = 0;  // now
};

// The families "weft_http_..." of a Metrics.
Metrics to_metrics(const ServerStats& stats);

class Exchange;

// The answer to one request. Any thread; copies are the same answer. Calls after its end do nothing, so
// nobody has to look first. When the last copy goes without an end, the client gets 500 or a stream that is
// cut off.
class Responder {
 public:
  Responder() = default;
  explicit Responder(std::shared_ptr<Exchange> exchange);

  // A whole response: the end.
  void send(const Response& response) const;

  // A stream: 200, text/event-stream.
  void start_stream() const;
  // Events as render_event makes them. Returns at once. False: the client has gone, or was too slow.
  bool write(std::string_view events) const;  // REQUIRES: start_stream()
  void finish() const;

  // Called once if the client goes before the end: on the server's thread, or at once where it has gone
  // already. It is let go of at the end, so it may hold what holds this Responder.
  void on_gone(std::function<void()> work) const;
  bool is_gone() const;

 private:
  struct Hold;
  std::shared_ptr<Hold> hold_;
};

// Called on the server's thread. It does not wait and does not throw; what takes long it hands to others.
class Handler {
 public:
  virtual ~Handler() = default;
  // Before the first request: what tells the server's figures, on any thread.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): who overrides it keeps it
  virtual void on_begin(std::function<ServerStats()> /*stats*/) {}
  // When the head is there and before the body is read: a refusal, or nothing.
  virtual std::optional<Response> on_head(const Request&) { return {}; }
  virtual void on_request(Request request, Responder responder) = 0;
  // What a client is told that the server itself refuses: 400, 413, 431, 503 and others.
  virtual Response on_refused(int status, const std::string& message);
};

class Server {
 public:
  // Errors: Unavailable (in use), PermissionDenied, InvalidArgument (the address; a certificate or key that
  // cannot be read, or do not belong together), NotFound (no such file).
  static Result<std::unique_ptr<Server>> start(const ServerOptions& options,
                                               std::shared_ptr<Handler> handler);
  virtual ~Server() = default;  // stops at once

  virtual net::Endpoint endpoint() const = 0;  // as bound
  virtual ServerStats stats() const = 0;       // any thread
  // No new connections or requests. Requests that are being answered may end within the deadline; then the
  // rest is closed, and the thread has ended. REQUIRES: not the server's own thread.
  virtual void stop(Duration deadline) = 0;
};

}  // namespace weft::web
