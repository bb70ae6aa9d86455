// A peer's connection to its broker for messages: one at a time, made anew as often as it is asked for.
// Belongs to its loop, which must outlive it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "net/connection.h"
#include "net/loop.h"
#include "proto/messages.h"

namespace weft::peer {

class ControlConnection {
 public:
  struct Handlers {
    std::function<void(const std::string& address)> on_connected;  // of the broker, as it is connected to
    std::function<void(const Error&)> on_connect_failed;
    // It has ended, or the broker says what it may not; drop() follows.
    std::function<void(const Error&)> on_lost;
    std::function<void(const proto::Message&)> on_message;
  };
  // `options`: asked for each connection, for lines may change.
  ControlConnection(net::Loop& loop, net::Endpoint broker, std::function<net::ConnectOptions()> options,
                    Handlers handlers)
      : loop_(loop),
        broker_(std::move(broker)),
        options_(std::move(options)),
        handlers_(std::move(handlers)) {}

  void connect();
  // What it still brings is not wanted; what was told last gets through within `linger`.
  void drop(Duration linger = {});
  // Without a connection: nothing.
  void tell(const proto::Message& message);
  bool is_connected() const { return connection_ != nullptr; }
  size_t unsent() const { return connection_ ? connection_->unsent() : 0; }

 private:
  void begin();
  void on_frame(const net::InFrame& frame);

  net::Loop& loop_;
  const net::Endpoint broker_;
  const std::function<net::ConnectOptions()> options_;
  const Handlers handlers_;
  std::unique_ptr<net::Attempt> attempt_;
  net::ConnectionPtr connection_;
};

}  // namespace weft::peer
