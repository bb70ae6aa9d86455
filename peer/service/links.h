// The links of one stage to the stages it shares cut edges with, over sockets. When a connection is dialled,
// taken or given up, and what is sent again, each link's machine says (peer/machine/link.h): each tensor
// comes exactly once, and only a link that cannot be had again within its deadline is down. Belongs to the
// loop.
//
// Tensors go in pieces, the most urgent first (link_queue.h), and little is given to a connection ahead of
// what it can send (link_channels.h). Where the other side is far away further connections carry pieces too,
// for one TCP stream may not fill the line.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/incremental/incremental.h"
#include "dag/tensor.h"
#include "net/connection.h"
#include "peer/machine/link.h"
#include "peer/service/dial_guard.h"
#include "peer/service/expected_tensors.h"
#include "peer/service/link_channels.h"
#include "peer/service/link_meter.h"
#include "peer/service/link_queue.h"
#include "peer/service/tensor_assembly.h"
#include "proto/codec/codec.h"
#include "proto/messages.h"

namespace weft::peer {

struct LinkOptions : LinkTimes {
  net::Loop* loop = nullptr;
  const security::Identity* identity = nullptr;
  net::Endpoint relay;  // the broker's public port
  // The emulated link to a region (empty: the broker's); nothing: not emulated.
  std::function<std::optional<net::Shape>(const std::string& region)> shape{};
  MayDial may_dial{};  // of addresses that the broker names
  // Of tensors that were sent and not acknowledged, by link; beyond it the link is down. A stage is granted a
  // few steps and microbatches ahead of its neighbours, which is far less.
  uint64_t kept_bytes_max = uint64_t{4} << 30;
  // Connections of a link, at most, where it is far; 0: tensors go whole over one, as peers before minor
  // version 5 have it.
  uint32_t streams = 4;
};

class Links {
 public:
  struct Handlers {
    std::function<void()> on_all_up;  // once; may be called by start()
    // Once for each link, of which nothing comes any more; the others go on.
    std::function<void(plan::Seat seat, const Error&)> on_down;
    // Each once, as it came: a codec's payload has still to be decoded (peer/service/encoding.h).
    std::function<void(plan::Seat seat, const proto::TensorHeader&, dag::Tensor payload)> on_tensor;
  };
  Links(LinkOptions options, std::shared_ptr<const proto::AssignStage> assignment, Handlers handlers);

  void start();
  // As ExpectedTensors has it.
  void expect(std::vector<dag::RowSpec> edges) { expected_.expect(std::move(edges)); }
  // Whether an accepted connection that introduced itself so belongs here; then it is taken over, and what
  // comes of it from now on goes to the returned handlers.
  std::optional<net::Connection::Handlers> offer(const net::ConnectionPtr& connection,
                                                 const proto::LinkHello& hello);
  void on_invitation(const proto::Secret& ticket);
  void on_tick();  // several times a second
  // As if each connection were lost: what is to be sent and has not come goes over another one.
  void lose_connections(const Error& error);

  // A tensor as its header says it travels: sent now, or as soon as the link is up again. May call on_down.
  void send(plan::Seat seat, const proto::TensorHeader& header, const dag::Tensor& payload);
  // What came from there cannot be read: as if the link were lost. May call on_down.
  void refuse(plan::Seat seat, const Error& error) { down(seat, error); }
  void pause_reading(bool paused);         // of tensors, on connections of now and later
  bool all_up() const;                     // each has been up
  size_t unsent() const;                   // bytes for any of them that have not left this machine
  std::vector<proto::LinkUse> take_use();  // since the last call; what was sent twice counts twice

 private:
  using Channel = LinkChannels::Channel;
  struct Link {
    LinkQueue queue{};
    std::unique_ptr<LinkMachine> machine{};
    TensorAssembly assembly{};
    LinkMeter meter{};
    LinkChannels channels{};
    std::unique_ptr<net::Attempt> attempt{};
    std::map<uint32_t, std::unique_ptr<net::Attempt>> further{};  // by index
    std::unique_ptr<net::Loop::Timer> wake{};
    uint64_t whole_bytes = 0;  // of tensors that came whole
    bool is_down = false;      // for good
  };
  // Carries out what the link's machine wants.
  void act(Link& link, LinkMachine::Effects effects);
  void dial(Link& link, const std::string& address, Duration deadline);
  void dial_stream(Link& link, const link_effects::DialStream& effect);
  void on_dialled(plan::Seat seat, Result<net::ConnectionPtr> result);
  void on_stream_dialled(plan::Seat seat, uint32_t stream, Result<net::ConnectionPtr> result);
  uint64_t add_channel(Link& link, const net::ConnectionPtr& connection);
  void close_channel(Link& link, uint64_t number);
  void begin(Link& link, uint64_t number);
  void end_session(Link& link);
  net::Connection::Handlers handlers_of(plan::Seat seat, uint64_t number);
  Result<net::PayloadPlace> on_head(plan::Seat seat, uint64_t number, uint8_t kind, size_t payload_size,
                                    std::span<const std::byte> head);
  Result<net::PayloadPlace> place_tensor(Link& link, size_t payload_size, std::span<const std::byte> head);
  Result<net::PayloadPlace> place_piece(Link& link, Channel& channel, size_t payload_size,
                                        std::span<const std::byte> head);
  void on_frame(plan::Seat seat, uint64_t number, const net::InFrame& frame);
  void on_tensor(Link& link, const net::InFrame& frame);
  void on_piece(Link& link, Channel& channel);
  void on_lost(plan::Seat seat, uint64_t number, const Error& error);
  void on_link_tick(Link& link, Instant now);
  void down(plan::Seat seat, const Error& error);
  net::ConnectOptions connect_options(const Link& link, const std::string& region, Duration deadline) const;
  static plan::Seat seat_of(const Link& link) { return link.machine->route().seat; }
  static Channel* channel_of(Link& link, uint64_t number);  // that carries tensors
  void give(Link& link);
  void on_drained(plan::Seat seat, uint64_t number);

  LinkOptions options_;
  std::shared_ptr<const proto::AssignStage> assignment_;
  ExpectedTensors expected_;
  Handlers handlers_;
  std::map<plan::Seat, Link> links_;  // by the other seat
  uint64_t next_number_ = 1;          // counts all connections: what comes from an older one is nobody's
  bool all_up_said_ = false, is_paused_ = false;
  std::shared_ptr<char> alive_ = std::make_shared<char>();  // callbacks outlive this for a moment
};

}  // namespace weft::peer
