// ZeroMQ, the bus inside the broker's own trust: one ROUTER where gates meet the core, one PUB that carries
// the event stream. What comes over it was authenticated, and decoded, by a gate.
//
// All are one process for now (inproc://), so what travels is a pointer to a value that nobody changes any
// more: nothing is encoded, and what is dropped is let go by ZeroMQ. For a gate on a host of its own the two
// places in bus.cc that wrap and unwrap are where the variants below would be encoded; instants are of this
// machine's clock, so ages would have to be sent instead.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "broker/events.h"

namespace weft::broker {

// ---- to the core

struct GateReady {};  // has subscribed: publish everything once
struct Wake {};       // somebody left something in the core's inbox
// Of the peers' connections of a gate, those of which something came since the last time. What came until
// `until` has been told, here or by messages before this.
struct Hearing {
  Instant until{};
  std::vector<Heard> peers{};
};
struct ToCore {
  uint32_t gate = 0;
  // What the connection's message takes in memory, about: told back by Taken.
  uint64_t size = 0;
  std::variant<GateReady, Introduced, Received, Disconnected, RelayWaiting, Hearing, Wake> what;
};

// ---- to a gate

struct Taken {  // of what came from this connection, so much is done with
  ConnectionId connection = 0;
  uint64_t size = 0;
};
// A part of the answer to GetEvents. `rest`: asks for what follows, once the connection has room. Without it
// these were all; then, where the asker follows, new ones come from the stream.
struct EventsPage {
  ConnectionId connection = 0;
  proto::JobNumber job = 0;
  std::vector<proto::JobEvent> events{};
  std::optional<proto::GetEvents> rest{};
  std::optional<uint64_t> follows_after{};  // the sequence of the last one there was
};
struct FeedExpected {  // as FeedOpened; what is asked for waits until that comes, or CloseFeed
  proto::JobNumber job = 0;
  proto::Secret data_key{};
};
struct FeedOpened {
  proto::JobNumber job = 0;
  proto::Secret data_key{};
};
// Whose tokens are passed on of a job that serves; nothing: nobody's.
struct ServedEntry {
  proto::JobNumber job = 0;
  proto::PlanVersion plan_version = 0;
  std::optional<PeerId> entry{};
};
using ToGate = std::variant<Send, Admit, Close, CloseAll, Taken, EventsPage, FeedExpected, FeedOpened,
                            CloseFeed, GrantRelay, RevokeRelay, ServedEntry>;

// ---- to all who subscribe

using Published = std::variant<proto::JobEvent, proto::PeerList>;

// The sockets of one broker. Made before the threads that use them.
class Bus {
 public:
  Bus();
  ~Bus();
  Bus(const Bus&) = delete;
  Bus& operator=(const Bus&) = delete;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Each socket below belongs to the thread that uses it after construction.

class CoreSocket {  // ROUTER and PUB
 public:
  explicit CoreSocket(Bus& bus);
  ~CoreSocket();
  // The next message, or null when none came in time.
  std::shared_ptr<const ToCore> receive(Duration timeout);
  void send(uint32_t gate, std::shared_ptr<const ToGate> message);  // to one that is gone: dropped
  void publish(std::shared_ptr<const Published> value);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class GateSocket {  // DEALER
 public:
  GateSocket(Bus& bus, const std::string& identity);
  ~GateSocket();
  int descriptor() const;  // edge-triggered: drain with receive() until nothing comes, after every send() too
  std::shared_ptr<const ToGate> receive();  // null: nothing is there
  void send(ToCore message);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Subscription {  // SUB
 public:
  explicit Subscription(Bus& bus);
  ~Subscription();
  int descriptor() const;                      // as of GateSocket
  std::shared_ptr<const Published> receive();  // null: nothing is there

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string gate_identity(uint32_t gate);
// A connection's number says which gate holds it.
inline ConnectionId first_connection_of(uint32_t gate) { return (uint64_t{gate} << 48) + 1; }
inline uint32_t gate_of(ConnectionId connection) { return static_cast<uint32_t>(connection >> 48); }

}  // namespace weft::broker
