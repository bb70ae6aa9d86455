// The links of one stage to the stages it shares cut edges with. A link outlives its connections: tensors
// that were sent are kept until the other side has counted them, and go over the next connection if they
// must, so that each comes exactly once. A connection is dialled, or waited for, or made through the broker's
// relay when there is no other way; when it ends, or nothing comes over it for a while, the side that dials
// dials again. Only a link that cannot be had again within its deadline is down. Belongs to the loop.
//
// Tensors go in pieces, the most urgent first (link_queue.h), and little is given to a connection ahead of
// what it can send, so that what is made a moment later and needed sooner does not wait behind what was
// given. Where the other side is far away further connections carry pieces too, for one TCP stream may not
// fill the line. They stand and fall together: when one that was up ends, all do, and the link is made anew.
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
#include "peer/service/dial_guard.h"
#include "peer/service/link_meter.h"
#include "peer/service/link_queue.h"
#include "peer/service/stream_choice.h"
#include "peer/service/tensor_assembly.h"
#include "proto/codec/codec.h"
#include "proto/messages.h"

namespace weft::peer {

struct LinkOptions {
  net::Loop* loop = nullptr;
  const security::Identity* identity = nullptr;
  net::Endpoint relay;  // the broker's public port
  // The emulated link to a region (empty: the broker's); nothing: not emulated.
  std::function<std::optional<net::Shape>(const std::string& region)> shape{};
  MayDial may_dial{};                                    // of addresses that the broker names
  Duration address_deadline = std::chrono::seconds(5);   // for each address in turn, and the relay
  Duration ready_deadline = std::chrono::seconds(30);    // for a link to be up the first time
  Duration heal_deadline = std::chrono::seconds(10);     // for a link that went down to be up again
  Duration silence_deadline = std::chrono::seconds(10);  // a connection over which nothing came is given up
  Duration ack_interval = std::chrono::seconds(1);       // signs of life
  Duration retry_delay_max = std::chrono::seconds(1);
  // Of tensors that were sent and not acknowledged, by link; beyond it the link is down. A stage is granted a
  // few steps and microbatches ahead of its neighbours, which is far less.
  uint64_t kept_bytes_max = uint64_t{4} << 30;
  // Connections of a link, at most, from that round trip on; 0: tensors go whole over one, as peers before
  // minor version 5 have it.
  uint32_t streams = 4;
  Duration far = std::chrono::milliseconds(5);
};

class Links {
 public:
  struct Handlers {
    std::function<void()> on_all_up;                             // once; may be called by start()
    std::function<void(plan::Seat seat, const Error&)> on_down;  // once; the stage cannot go on
    // Each once, as it came: a codec's payload has still to be decoded (peer/service/encoding.h).
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
  struct Coming {
    proto::PieceHead piece{};
    bool is_new = false;  // of a tensor that has not come
  };
  struct Way {  // a connection, and how it came about
    net::ConnectionPtr connection{};
    uint64_t number = 0;  // counts all connections: what comes from an older one is nobody's
    bool relayed = false;
    Instant heard{};  // when bytes came last
    uint64_t bytes_heard = 0;
    size_t ahead = 0;                // bytes that it is given at a time
    Instant given{};                 // when it was last given any while it had none
    std::optional<Coming> coming{};  // the piece whose head came last
  };
  struct Stream {  // a further connection of a link
    std::unique_ptr<net::Attempt> attempt{};
    Way way{};
    bool is_up = false;
  };
  // What the other side said of itself.
  struct Greeting {
    uint64_t received = 0;
    uint32_t streams = 0;
    uint64_t session = 0;
  };
  struct Link {
    proto::LinkRoute route{};
    LinkQueue queue{};
    LinkReceipts receipts{};
    TensorAssembly assembly{};
    LinkMeter meter{};
    Way up{};        // tensors go over it
    Way greeting{};  // connected, and not yet introduced
    std::unique_ptr<net::Attempt> attempt{};
    std::unique_ptr<net::Loop::Timer> retry{};
    // A session is what one connection and its further ones live through together.
    std::map<uint32_t, Stream> further{};  // by index, from 1
    uint64_t session = 0;                  // as its LinkReady named it
    uint32_t streams = 1;                  // what both sides take
    StreamChoice choice{};                 // which of them this side uses
    std::optional<Instant> busy_since{};   // more waits than they take
    uint64_t busy_sent = 0;                // bytes that had left by then
    bool in_pieces = false;                // both know them
    Instant session_began{};
    uint32_t broken_sessions = 0;  // that had further connections and did not last, in a row
    Instant dialled{}, greeted{};
    Duration round_trip{};  // about, of the session
    bool was_up = false;
    bool relayed = false;    // it was last up through the relay: then both sides go there by themselves
    Instant since{};         // when it began, or went down
    Instant acknowledged{};  // when this side last said how much has come
    size_t way = 0;          // what is dialled next: the addresses, then the relay; first what worked last
    size_t tries = 0;        // since something came
    uint64_t bytes_sent_before = 0, bytes_sent_told = 0;
    uint64_t whole_bytes = 0;                       // of tensors that came whole
    std::map<std::string, std::string> problems{};  // of each way that was tried, the latest
  };
  void dial(Link& link);
  void dial_relay(Link& link);
  void dial_later(Link& link);
  void on_dialled(plan::Seat seat, bool relayed, const std::string& where, Result<net::ConnectionPtr> result);
  net::Connection::Handlers handlers_of(plan::Seat seat, uint64_t number);
  Result<net::PayloadPlace> on_head(plan::Seat seat, uint64_t number, uint8_t kind, size_t payload_size,
                                    std::span<const std::byte> head);
  // False: there is no such edge. Errors: the edge's tensors are others.
  Result<bool> is_expected(const proto::TensorHeader& header) const;
  Result<net::PayloadPlace> place_tensor(Link& link, size_t payload_size, std::span<const std::byte> head);
  Result<net::PayloadPlace> place_piece(Link& link, Way& way, size_t payload_size,
                                        std::span<const std::byte> head);
  void on_frame(plan::Seat seat, uint64_t number, const net::InFrame& frame);
  void on_message(Link& link, Way& way, const proto::Message& message);
  void on_tensor(Link& link, const net::InFrame& frame);
  void on_piece(Link& link, Way& way);
  void on_greeting(Link& link, const proto::Message& message);
  bool set_up(Link& link, Way way, const Greeting& theirs, bool answers);
  void on_lost(plan::Seat seat, uint64_t number, const Error& error);
  void end_session(Link& link);

  // Of one link's connections (link_streams.cc).
  void open_streams(Link& link);
  void on_stream_dialled(plan::Seat seat, uint64_t session, uint32_t stream,
                         Result<net::ConnectionPtr> result);
  std::optional<net::Connection::Handlers> offer_stream(Link& link, const net::ConnectionPtr& connection,
                                                        const proto::LinkHello& hello);
  Way make_way(const net::ConnectionPtr& connection, bool relayed);
  static Way* way_of(Link& link, uint64_t number);  // that is up
  // Those that are up.
  template <typename LinkType, typename Visit>
  static void each_way(LinkType& link, Visit&& visit) {
    if (link.up.connection) visit(link.up);
    for (auto& [index, stream] : link.further)
      if (stream.is_up) visit(stream.way);
  }
  static Stream* stream_of(Link& link, uint64_t number);
  void on_stream_ready(Link& link, Stream& stream, const proto::Message& message);
  static void shift_clocks(Link& link, Duration by);
  void say_alive(Link& link);
  void give(Link& link);
  bool give_next(Link& link);  // false: no connection in use takes more, or there is nothing
  static size_t ahead_max(const Link& link);
  void count_busy(Link& link, bool is_busy);
  void on_drained(plan::Seat seat, uint64_t number);
  static uint64_t bytes_came(const Link& link);
  void on_link_tick(Link& link, Instant now);
  void acknowledge(Link& link);
  void drop(Link& link, Way& way);
  void down(plan::Seat seat, const Error& error);
  net::ConnectOptions connect_options(const Link& link, const std::string& region) const;
  static void set_limits(net::Connection& connection, bool in_pieces);
  proto::LinkHello hello_of(const Link& link) const;
  proto::LinkReady ready_of(const Link& link) const;

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
