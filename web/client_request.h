// One request of a client, and its answer as it comes; a connection for each. Internal to web/.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/byte_connect.h"
#include "net/loop.h"
#include "net/transport.h"
#include "web/response_parser.h"
#include "web/tls.h"
#include "web/url.h"

namespace weft::web {

class ClientRequest final : net::Transport::Events {
 public:
  // Begins at once. `tls`: nothing for http.
  ClientRequest(net::Loop& loop, const Url& url, const ClientTls* tls, std::string bytes,
                Duration connect_deadline);
  ~ClientRequest();

  enum class State : uint8_t { Connecting, Waiting, Answering, Complete, Broken };
  State state() const;
  bool was_connected() const { return transport_ != nullptr; }
  const Error& why_broken() const { return *broken_; }  // REQUIRES: Broken
  const ResponseParser& answer() const { return parser_; }
  std::string take_body() { return parser_.take_body(); }
  uint64_t progress() const { return progress_; }  // grows with whatever happens

 private:
  void on_connected(Result<net::TransportPtr> connected);
  void on_readable() override;
  void on_writable() override { flush(); }
  void flush();
  void end_input(const net::Io& io);
  void fail_with(ErrorCode code, const std::string& what);

  net::Loop& loop_;
  const Url url_;
  const ClientTls* const tls_;
  std::string out_;
  size_t sent_ = 0;
  const std::shared_ptr<std::string> tls_fault_ = std::make_shared<std::string>();
  net::TransportPtr transport_;
  ResponseParser parser_;
  std::optional<Error> broken_;
  uint64_t progress_ = 0;
  std::unique_ptr<net::ByteDial> dial_;
};

// GET or POST as bytes. `extra` are whole lines of headers.
std::string render_http_request(const Url& url, std::string_view method, std::string_view path,
                                const std::string& extra, std::string_view body);

}  // namespace weft::web
