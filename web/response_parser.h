// The bytes of a connection become a response of HTTP/1.1 (RFC 9112), within limits; the other side of
// request_parser.h. Pure.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace weft::web {

struct ResponseLimits {
  size_t head_bytes_max = 32 << 10;
  size_t header_count_max = 128;
};

class ResponseParser {
 public:
  enum class State : uint8_t {
    Head,      // more of the head has to come
    Body,      // the head is there
    Complete,  // all of the body has come; what comes behind it is ignored
    Refused,   // fault() says why
  };
  explicit ResponseParser(const ResponseLimits& limits = {});
  ~ResponseParser();
  ResponseParser(ResponseParser&&) noexcept;
  ResponseParser& operator=(ResponseParser&&) noexcept;

  void feed(std::string_view bytes);
  // The connection has ended: so has a body that has no length. Anything else is refused.
  void end();

  State state() const;
  bool has_head() const;  // status() and header() say something, even where the body was refused
  int status() const;
  // The first of that name, which is in lower case.
  std::optional<std::string_view> header(std::string_view name) const;
  // What has come of the body since the last call: who calls after each feed() never holds much.
  std::string take_body();
  const std::string& fault() const;  // REQUIRES: Refused

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::web
