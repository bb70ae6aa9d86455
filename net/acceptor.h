// A socket that listens, and the back-off of one that may not accept: what stands below each kind of port.
// Internal to net/.
#pragma once

#include <asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <utility>

#include "base/result.h"
#include "net/context.h"
#include "net/endpoint.h"

namespace weft::net {

class Acceptor final : public std::enable_shared_from_this<Acceptor> {
 public:
  using OnAccept = std::function<void(asio::ip::tcp::socket, const asio::ip::tcp::endpoint& from)>;

  Acceptor(std::shared_ptr<Context> context, OnAccept on_accept)
      : acceptor_(context->io), back_off_(std::move(context)), on_accept_(std::move(on_accept)) {}

  // Port 0 takes a free one. Errors: Unavailable (in use), PermissionDenied, InvalidArgument.
  Status open(const Endpoint& endpoint);
  void close();  // on_accept is not called again
  Endpoint bound() const;

 private:
  void wait();
  void accept_all();

  asio::ip::tcp::acceptor acceptor_;
  asio::ip::tcp::endpoint local_;
  Alarm back_off_;
  OnAccept on_accept_;
  bool is_closed_ = false;
};

}  // namespace weft::net
