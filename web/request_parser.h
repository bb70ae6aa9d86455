// The bytes of a connection become requests of HTTP/1.1 (RFC 9112), within limits. Pure.
//
// Boost.Beast's parser reads the grammar. RESTinio, which Debian 12 has as 0.6.16, would be the whole server,
// but cannot hold this port's limits: on what it cannot parse, and on a body beyond its limit, it closes
// without an answer (no 400, no 413); one time limit stands for an idle connection, a head and a body; while
// a request is being served it either does not read, and misses that the client has gone, or reads under that
// same time limit, which ends a stream. It needs http_parser, too, which nobody keeps any more.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "web/message.h"

namespace weft::web {

struct RequestLimits {
  size_t head_bytes_max = 16 << 10;  // the request line and all headers
  size_t header_count_max = 64;
  size_t target_bytes_max = 4 << 10;
  size_t body_bytes_max = 1 << 20;
};

class RequestParser {
 public:
  enum class State : uint8_t {
    Head,      // more of the head has to come
    Body,      // the head is there: request() has all but the body
    Complete,  // take() has it; what was not taken in belongs to the next request
    Refused,   // refusal() says why; nothing more can be read from this connection
  };
  struct Refusal {
    int status = 400;
    std::string message;
  };

  explicit RequestParser(const RequestLimits& limits);
  ~RequestParser();
  RequestParser(RequestParser&&) noexcept;
  RequestParser& operator=(RequestParser&&) noexcept;

  // Takes bytes from the front, and says how many. Those that were not taken come again, with more behind
  // them; there are never more of them than head_bytes_max. It stops at the end of a head and of a request.
  size_t feed(std::string_view bytes);

  State state() const;
  const Request& request() const;  // REQUIRES: Body or Complete
  Request take();                  // REQUIRES: Complete. A new parser reads the next one.
  const Refusal& refusal() const;  // REQUIRES: Refused
  size_t body_bytes() const;       // of the body: those that are there, or that were announced
  bool has_begun() const;          // a byte of the request is there
  bool keeps_alive() const;        // REQUIRES: Body or Complete
  bool is_http_1_0() const;        // REQUIRES: Body or Complete
  bool expects_continue() const;   // REQUIRES: Body or Complete

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::web
