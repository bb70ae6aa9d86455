// The connections of one stage to the stages it shares cut edges with: dialled, or waited for, or through the
// broker's relay when there is no other way. Belongs to the loop.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "net/connection.h"
#include "proto/codec/codec.h"
#include "proto/messages.h"

namespace weft::peer {

struct LinkOptions {
  net::Loop* loop = nullptr;
  const security::Identity* identity = nullptr;
  net::Endpoint relay;  // the broker's public port
  // The emulated link to a region (empty: the broker's); nothing: not emulated.
  std::function<std::optional<net::Shape>(const std::string& region)> shape{};
  Duration address_deadline = std::chrono::seconds(5);  // for each address in turn
  Duration ready_deadline = std::chrono::seconds(30);   // for a link to be up
};

class Links {
 public:
  struct Handlers {
    std::function<void()> on_all_up;
    std::function<void(uint32_t stage, const Error&)> on_down;  // once; the stage cannot go on
    std::function<void(uint32_t stage, const proto::TensorFrame&)> on_tensor;
  };
  Links(LinkOptions options, std::shared_ptr<const proto::AssignStage> assignment, Handlers handlers);

  void start();
  // Whether an accepted connection that introduced itself so belongs here; then it is taken over. Its frames
  // from now on go to the returned function.
  struct Taken {
    std::function<void(net::InFrame)> on_frame;
    std::function<void(const Error&)> on_closed;
  };
  std::optional<Taken> offer(const net::ConnectionPtr& connection, const proto::LinkHello& hello);
  void on_invitation(const proto::Secret& ticket);
  void on_tick();

  // REQUIRES: the link is up.
  void send(uint32_t stage, net::OutFrame frame);
  bool all_up() const;
  std::vector<proto::LinkUse> take_use();  // since the last call

 private:
  struct Link {
    proto::LinkRoute route;
    size_t next_address = 0;
    bool relayed = false;
    std::unique_ptr<net::Attempt> attempt;
    net::ConnectionPtr connection;
    bool up = false;
    Instant since;
    uint64_t bytes_counted = 0;
    std::string problems;  // of the ways that were tried
  };
  void dial(Link& link);
  void dial_relay(Link& link, bool initiates);
  void on_dialled(uint32_t stage, const std::string& where, Result<net::ConnectionPtr> result);
  void on_frame(uint32_t stage, const net::InFrame& frame);
  void set_up(Link& link);
  void down(uint32_t stage, const Error& error);
  net::ConnectOptions connect_options(const Link& link, const std::string& region) const;

  LinkOptions options_;
  std::shared_ptr<const proto::AssignStage> assignment_;
  Handlers handlers_;
  std::map<uint32_t, Link> links_;  // by the other stage
  bool failed_ = false;
  std::shared_ptr<char> alive_ = std::make_shared<char>();  // callbacks outlive this for a moment
};

}  // namespace weft::peer
