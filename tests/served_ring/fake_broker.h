// A broker as far as peers that serve need one: it admits them, gives them blobs, takes up the stages that
// they hold when they come back, and hands on what they say. Belongs to its loop's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>

#include "dag/tensor.h"
#include "net/connection.h"
#include "net/listener.h"
#include "net/loop.h"
#include "proto/messages.h"
#include "security/identity.h"

namespace weft::served {

class FakeBroker {
 public:
  explicit FakeBroker(net::Loop& loop);

  net::Endpoint endpoint() const { return listener_->endpoint(); }
  PeerId key() const { return identity_->id(); }

  Digest put(const dag::Tensor& tensor);
  bool is_here(const PeerId& peer) const { return controls_.contains(peer); }
  // Where others reach it, as it said when it came.
  const std::string& address_of(const PeerId& peer) const { return addresses_.at(peer); }
  // To who is here.
  void say(const PeerId& peer, const proto::Message& message);
  void hang_up();                          // on all of them
  size_t given(const PeerId& peer) const;  // blobs

  std::function<void(const PeerId& from, const proto::Message& message)> on_message{};

 private:
  using ConnectionPtr = net::ConnectionPtr;
  void on_accepted(const ConnectionPtr& connection);
  void on_message_of(const ConnectionPtr& connection, const proto::Message& message);
  void on_hello(const ConnectionPtr& connection, const proto::Hello& hello);
  void give(const ConnectionPtr& connection, const proto::GetBlob& wanted);

  net::Loop& loop_;
  std::unique_ptr<security::Identity> identity_ = *security::Identity::generate();
  std::map<Digest, dag::Tensor> blobs_;
  std::map<PeerId, ConnectionPtr> controls_;
  std::map<PeerId, std::string> addresses_;
  std::map<PeerId, size_t> given_;
  std::set<ConnectionPtr> accepted_;
  std::unique_ptr<net::Listener> listener_;
};

}  // namespace weft::served
