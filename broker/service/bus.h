// ZeroMQ, the bus inside the broker's own trust: one ROUTER where gates meet the core, one PUB that carries
// the event stream. inproc:// for now, as all are one process. What comes over it was authenticated by a
// gate.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"

namespace weft::broker {

enum class BusKind : uint8_t {
  // gate to core
  GateReady = 1,     // subscribed: publish everything once
  Introduced = 2,    // payload: peer id (32), address length u8, address, encoded Hello
  Received = 3,      // payload: encoded Message
  Disconnected = 4,  // payload: reason
  RelayWaiting = 5,  // payload: ticket (16)
  Wake = 6,          // somebody left something in the core's inbox
  // core to gate
  Send = 16,   // payload: encoded Message
  Admit = 17,  // payload: role u8
  Close = 18,
  OpenFeed = 19,  // connection: the job; payload: data key (16)
  CloseFeed = 20,
  GrantRelay = 21,  // payload: ticket
  RevokeRelay = 22,
  Follow = 23,      // payload: job u64, sequence sent last u64
  ExpectFeed = 24,  // as OpenFeed; what is asked for waits until that comes, or CloseFeed
  Taken = 25,       // payload: bytes u64 of payloads that came from this connection and are done with
};

struct BusMessage {
  BusKind kind = BusKind::Wake;
  uint64_t connection = 0;
  std::string payload;
};

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
  // The next message, or nothing when none came in time.
  std::optional<BusMessage> receive(Duration timeout);
  void send(uint32_t gate, const BusMessage& message);
  void publish(char topic, std::string_view payload);  // 'e' event, 's' status, 'p' peers

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class GateSocket {  // DEALER
 public:
  GateSocket(Bus& bus, const std::string& identity);
  ~GateSocket();
  int descriptor() const;  // edge-triggered: drain with receive() until nothing comes, after every send() too
  std::optional<BusMessage> receive();
  void send(const BusMessage& message);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Subscription {  // SUB
 public:
  explicit Subscription(Bus& bus);
  ~Subscription();
  int descriptor() const;
  struct Item {
    char topic = 0;
    std::string payload;
  };
  std::optional<Item> receive();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string gate_identity(uint32_t gate);

// Numbers in payloads.
void append_u64(std::string& out, uint64_t value);
uint64_t read_u64(std::string_view bytes, size_t at);  // REQUIRES: at + 8 <= size

}  // namespace weft::broker
