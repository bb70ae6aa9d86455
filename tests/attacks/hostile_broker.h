// A broker that lies: it has the key that its token names, admits whoever comes, and says what a test wants.
// Belongs to its loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <variant>

#include "net/connection.h"
#include "net/listener.h"
#include "net/loop.h"
#include "proto/codec/codec.h"
#include "security/identity.h"
#include "security/token.h"

namespace weft::attacks {

class HostileBroker {
 public:
  HostileBroker();

  std::string address() const { return net::to_string(listener_->endpoint()); }
  std::string token() const { return security::to_text(token_); }

  // What a test changes: how peers are admitted, and what is answered on their second connection. Without an
  // answer to a question there, nothing is said.
  proto::HelloAck ack{.software = "test",
                      .name = "victim",
                      .heartbeat_interval = std::chrono::milliseconds(200),
                      .lease = std::chrono::seconds(60)};
  std::function<void(const proto::Message& question)> on_bulk{};
  std::function<void(const proto::Message& message)> on_control{};

  // The connections of the peer that was admitted last; null while there are none.
  const net::ConnectionPtr& control() const { return control_; }
  const net::ConnectionPtr& bulk() const { return bulk_; }
  uint64_t admissions() const { return admissions_; }
  uint64_t heartbeats() const { return heartbeats_; }

  // False: there is no peer to hear it.
  bool say(const proto::Message& message);
  bool answer(const proto::Message& message);
  void answer(net::OutFrame frame);
  size_t unsent() const;

  // Until it holds, or that time is over; whether it holds.
  bool wait(Duration time, const std::function<bool()>& until) { return loop_.run_until(time, until); }

 private:
  void on_accepted(const net::ConnectionPtr& connection);
  void on_frame(const net::ConnectionPtr& connection, const net::InFrame& frame);

  net::Loop loop_;
  std::unique_ptr<security::Identity> identity_ = *security::Identity::generate();
  const security::Token token_ = security::make_token(security::Role::Peer, identity_->id());
  std::unique_ptr<net::Listener> listener_;
  std::set<net::ConnectionPtr> accepted_;
  net::ConnectionPtr control_, bulk_;
  uint64_t admissions_ = 0, heartbeats_ = 0;
};

net::OutFrame frame_of(const proto::Message& message);

}  // namespace weft::attacks
