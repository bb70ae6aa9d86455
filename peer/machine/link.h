// One link of a stage to a neighbour, which outlives its connections: who dials, where and after which pause,
// what is said before tensors go over a connection, when one is given up, what is acknowledged, and from
// where on tensors are sent again, so that each comes exactly once. Pure: a shell (peer/service/links.h over
// sockets, or the simulator) tells it what happened and carries its effects out, in order.
//
// The shell gives each connection a number that it never uses again, and knows one dialling at a time, and
// one for each further connection; what it is told of a connection that was closed, or lost, is dropped here.
//
// The first connection that has greeted begins a session. Further ones may join it, where the other side is
// far away, to carry pieces of the same tensors; all of them stand and fall together. A link that is not up
// again within its deadline has failed, and its stage with it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "peer/machine/link_connections.h"
#include "peer/machine/link_dialling.h"
#include "peer/machine/link_effects.h"
#include "peer/machine/link_ledger.h"
#include "peer/machine/link_times.h"
#include "proto/messages.h"

namespace weft::peer {

// What is sent over a link, and kept until it has come: LinkLedger's rules for both.
class LinkOutbox {
 public:
  virtual ~LinkOutbox() = default;
  virtual Status acknowledged(uint64_t received) = 0;
  virtual Status resume(uint64_t received) = 0;
  virtual bool is_empty() const = 0;  // all that was to be sent has come
};

// What the other side said of itself.
struct LinkGreeting {
  uint64_t received = 0;
  uint32_t streams = 0;
  uint64_t session = 0;
};

class LinkMachine {
 public:
  struct Options {
    LinkTimes times{};
    uint32_t streams = 4;                      // connections, at most; 0: tensors go whole
    std::function<uint64_t()> draw_session{};  // at random
  };

  using Effects = link_effects::Effects;

  // `outbox` outlives it.
  LinkMachine(Options options, const proto::AssignStage& assignment, proto::LinkRoute route,
              LinkOutbox& outbox);

  Effects start(Instant now);
  // Somebody waits at the relay with the ticket.
  Effects on_invited(Instant now, const proto::Secret& ticket);
  // What Dial led to: the connection's number.
  Effects on_dialled(Instant now, const Result<uint64_t>& connection);
  Effects on_stream_dialled(Instant now, uint32_t stream, const Result<uint64_t>& connection);
  Effects on_wake(Instant now);

  // Whether a connection that `who` dialled and introduced so is this link's.
  bool wants(const PeerId& who, const proto::LinkHello& hello) const;
  // Such a connection. One that is not taken is closed. REQUIRES: wants().
  Effects on_accepted(Instant now, uint64_t connection, const proto::LinkHello& hello);

  Effects on_message(Instant now, uint64_t connection, const proto::Message& message);
  void on_bytes(Instant now, uint64_t connection);  // some came over it, of whatever
  Effects on_lost(Instant now, uint64_t connection, const Error& error);
  Effects on_tick(Instant now);  // several times a second
  // What came cannot be read, or what is to be sent cannot be kept.
  Effects refuse(const Error& error);

  // Of tensors that come. Whether it came before.
  bool has_received(uint64_t number) const { return receipts_.has_received(number); }
  // All below that number have come.
  uint64_t received() const { return receipts_.received(); }
  // It came whole. REQUIRES: it had not come.
  Effects on_tensor(Instant now, uint64_t number, uint64_t bytes);
  void on_piece() { dialling_.something_came(); }

  const proto::LinkRoute& route() const { return route_; }
  bool was_up() const { return was_up_; }
  bool is_up() const { return at_.up.has_value(); }
  bool is_relayed() const { return at_.up && at_.up->relayed; }  // through the broker
  bool has_failed() const { return failed_; }
  bool in_pieces() const { return session_.in_pieces; }  // both sides know them
  uint32_t streams() const { return session_.streams; }  // what both sides take
  // Tensors go over it.
  bool carries(uint64_t connection) const { return at_.carries(connection); }

 private:
  using Channel = LinkChannel;
  using Greeting = LinkGreeting;
  struct Session {
    uint64_t number = 0;  // as its LinkReady named it; 0: there is none
    uint32_t streams = 1;
    bool in_pieces = false;
    Instant began{};
  };
  void dial(Instant now, bool over_relay, Effects& effects);
  void dial_later(Effects& effects);
  bool set_up(Instant now, Channel channel, const Greeting& theirs, bool answers, Effects& effects);
  void on_greeting(Instant now, const proto::Message& message, Effects& effects);
  void on_stream_ready(uint64_t connection, const proto::Message& message, Effects& effects);
  bool accept_stream(Instant now, uint64_t connection, const proto::LinkHello& hello, Effects& effects);
  void open_streams(Effects& effects);
  void lose(Instant now, uint64_t connection, const Error& error, Effects& effects);
  void end_session(Instant now, Effects& effects);
  void close_greeting(Effects& effects);
  void wake_from_sleep(Instant now);
  void lose_silent(Instant now, Effects& effects);
  // A neighbour may not have its stage yet, the first time.
  Duration silence_allowed(uint64_t connection) const;
  void acknowledge(Instant now, Effects& effects);
  void fail_with(const Error& error, Effects& effects);
  proto::LinkHello hello() const;
  proto::LinkReady ready() const;

  const Options options_;
  const proto::JobNumber run_;
  const proto::PlanVersion plan_version_;
  const plan::Seat seat_;
  const bool is_between_replicas_;  // with local steps
  const proto::LinkRoute route_;
  LinkOutbox& outbox_;
  LinkReceipts receipts_{};
  LinkDialling dialling_;
  LinkConnections at_;
  Session session_{};
  SessionBreaks breaks_;
  Instant dialled_{}, greeted_{};
  Duration round_trip_{};  // about, of the session
  bool wakes_ = false;     // is to be woken
  bool was_up_ = false;
  bool failed_ = false;
  Instant since_{};         // when it began, or went down
  Instant acknowledged_{};  // when this side last said how much has come
  Instant ticked_{};
};

}  // namespace weft::peer
