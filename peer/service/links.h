// The links of one stage to the stages it shares cut edges with. A link outlives its connections: tensors
// that were sent are kept until the other side has counted them, and go over the next connection if they
// must, so that each comes exactly once and in order. A connection is dialled, or waited for, or made through
// the broker's relay when there is no other way; when it ends, or nothing comes over it for a while, the side
// that dials dials again. Only a link that cannot be had again within its deadline is down. Belongs to the
// loop.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/tensor.h"
#include "net/connection.h"
#include "peer/machine/link_ledger.h"
#include "proto/codec/codec.h"
#include "proto/messages.h"

namespace weft::peer {

struct LinkOptions {
  net::Loop* loop = nullptr;
  const security::Identity* identity = nullptr;
  net::Endpoint relay;  // the broker's public port
  // The emulated link to a region (empty: the broker's); nothing: not emulated.
  std::function<std::optional<net::Shape>(const std::string& region)> shape{};
  Duration address_deadline = std::chrono::seconds(5);   // for each address in turn, and the relay
  Duration ready_deadline = std::chrono::seconds(30);    // for a link to be up the first time
  Duration heal_deadline = std::chrono::seconds(10);     // for a link that went down to be up again
  Duration silence_deadline = std::chrono::seconds(10);  // a connection over which nothing came is given up
  Duration ack_interval = std::chrono::seconds(1);       // signs of life
  Duration retry_delay_max = std::chrono::seconds(1);
  // Of tensors that were sent and not acknowledged, by link; beyond it the link is down. A stage is granted a
  // few steps and microbatches ahead of its neighbours, which is far less.
  uint64_t kept_bytes_max = uint64_t{4} << 30;
};

class Links {
 public:
  struct Handlers {
    std::function<void()> on_all_up;                             // once; may be called by start()
    std::function<void(plan::Seat seat, const Error&)> on_down;  // once; the stage cannot go on
    // Each once, in order, as it came: a codec's payload has still to be decoded (peer/service/encoding.h).
    std::function<void(plan::Seat seat, const proto::TensorHeader&, dag::Tensor payload)> on_tensor;
  };
  Links(LinkOptions options, std::shared_ptr<const proto::AssignStage> assignment, Handlers handlers);

  void start();
  // Whether an accepted connection that introduced itself so belongs here; then it is taken over, and what
  // comes of it from now on goes to the returned handlers.
  std::optional<net::Connection::Handlers> offer(const net::ConnectionPtr& connection,
                                                 const proto::LinkHello& hello);
  void on_invitation(const proto::Secret& ticket);
  void on_tick();  // several times a second

  // A tensor's frame: sent now, or as soon as the link is up again. May call on_down.
  void send(plan::Seat seat, net::OutFrame frame);
  // What came from there cannot be read: as if the link were lost. May call on_down.
  void refuse(plan::Seat seat, const Error& error) { down(seat, error); }
  void pause_reading(bool paused);         // of tensors, on connections of now and later
  bool all_up() const;                     // each has been up
  size_t unsent() const;                   // bytes for any of them that have not left this machine
  std::vector<proto::LinkUse> take_use();  // since the last call; what was sent twice counts twice

 private:
  struct Way {  // a connection, and how it came about
    net::ConnectionPtr connection{};
    uint64_t number = 0;  // counts all connections: what comes from an older one is nobody's
    bool relayed = false;
    Instant heard{};  // when bytes came last
    uint64_t bytes_heard = 0;
  };
  struct Link {
    proto::LinkRoute route{};
    LinkLedger<net::OutFrame> ledger;
    Way up{};        // tensors go over it
    Way greeting{};  // connected, and not yet introduced
    std::unique_ptr<net::Attempt> attempt{};
    std::unique_ptr<net::Loop::Timer> retry{};
    bool was_up = false;
    bool relayed = false;    // it was last up through the relay: then both sides go there by themselves
    Instant since{};         // when it began, or went down
    Instant acknowledged{};  // when this side last said how much has come
    size_t way = 0;          // what is dialled next: the addresses, then the relay; first what worked last
    size_t tries = 0;        // since something came
    uint64_t bytes_sent_before = 0, bytes_sent_told = 0;
    Instant head_came{};                            // of the tensor that is coming
    proto::LinkUse timed{};                         // since the last take_use
    std::map<std::string, std::string> problems{};  // of each way that was tried, the latest
  };
  void dial(Link& link);
  void dial_relay(Link& link);
  void dial_later(Link& link);
  void on_dialled(plan::Seat seat, bool relayed, const std::string& where, Result<net::ConnectionPtr> result);
  net::Connection::Handlers handlers_of(plan::Seat seat, uint64_t number);
  Result<net::Placement> on_head(plan::Seat seat, uint64_t number, uint8_t kind, size_t payload_size,
                                 std::span<const std::byte> head);
  struct Expected {
    const dag::TensorSpec* spec = nullptr;
    compress::Codec codec{};
  };
  // As assigned; nothing: no such edge.
  std::optional<Expected> expected_of(const proto::TensorHeader& header) const;
  void on_frame(plan::Seat seat, uint64_t number, const net::InFrame& frame);
  void time_frame(Link& link, size_t size) const;
  void on_greeting(Link& link, const proto::Message& message);
  bool set_up(Link& link, Way way, uint64_t received, bool answers);
  void on_lost(plan::Seat seat, uint64_t number, const Error& error);
  void on_link_tick(Link& link, Instant now);
  void acknowledge(Link& link);
  void drop(Link& link, Way& way);
  void down(plan::Seat seat, const Error& error);
  net::ConnectOptions connect_options(const Link& link, const std::string& region) const;
  void set_limits(net::Connection& connection) const;

  LinkOptions options_;
  std::shared_ptr<const proto::AssignStage> assignment_;
  Handlers handlers_;
  std::map<plan::Seat, Link> links_;  // by the other seat
  uint64_t next_number_ = 1;
  Instant ticked_{};
  bool failed_ = false, all_up_said_ = false, is_paused_ = false;
  std::shared_ptr<char> alive_ = std::make_shared<char>();  // callbacks outlive this for a moment
};

}  // namespace weft::peer
