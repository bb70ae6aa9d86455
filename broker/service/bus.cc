#include "broker/service/bus.h"

#include <zmq.hpp>

#include <cstring>

#include "base/check.h"

namespace weft::broker {

namespace {
constexpr const char* kCore = "inproc://core";
constexpr const char* kEvents = "inproc://events";
constexpr int kHighWater = 1'000'000;  // messages; connections' own limits bound them long before

zmq::message_t to_zmq(const BusMessage& message) {
  zmq::message_t out(9 + message.payload.size());
  auto* bytes = out.data<char>();
  bytes[0] = static_cast<char>(message.kind);
  std::memcpy(bytes + 1, &message.connection, 8);
  std::memcpy(bytes + 9, message.payload.data(), message.payload.size());
  return out;
}

BusMessage from_zmq(const zmq::message_t& in) {
  WEFT_CHECK(in.size() >= 9);
  BusMessage message;
  message.kind = static_cast<BusKind>(in.data<char>()[0]);
  std::memcpy(&message.connection, in.data<char>() + 1, 8);
  message.payload.assign(in.data<char>() + 9, in.size() - 9);
  return message;
}
}  // namespace

struct Bus::Impl {
  zmq::context_t context{0};  // inproc needs no I/O thread
};
Bus::Bus() : impl_(std::make_unique<Impl>()) {}
Bus::~Bus() = default;

struct CoreSocket::Impl {
  zmq::socket_t router, events;
  explicit Impl(Bus& bus)
      : router(bus.impl().context, zmq::socket_type::router),
        events(bus.impl().context, zmq::socket_type::pub) {
    for (zmq::socket_t* socket : {&router, &events}) {
      socket->set(zmq::sockopt::sndhwm, kHighWater);
      socket->set(zmq::sockopt::rcvhwm, kHighWater);
      socket->set(zmq::sockopt::linger, 0);
    }
    router.bind(kCore);
    events.bind(kEvents);
  }
};
CoreSocket::CoreSocket(Bus& bus) : impl_(std::make_unique<Impl>(bus)) {}
CoreSocket::~CoreSocket() = default;

std::optional<BusMessage> CoreSocket::receive(Duration timeout) {
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(timeout);
  impl_->router.set(zmq::sockopt::rcvtimeo, static_cast<int>(wait.count()));
  zmq::message_t from, body;
  if (!impl_->router.recv(from)) return std::nullopt;
  WEFT_CHECK(impl_->router.recv(body).has_value());
  return from_zmq(body);
}

void CoreSocket::send(uint32_t gate, const BusMessage& message) {
  const std::string identity = gate_identity(gate);
  impl_->router.send(zmq::buffer(identity), zmq::send_flags::sndmore);
  impl_->router.send(to_zmq(message), zmq::send_flags::none);
}

void CoreSocket::publish(char topic, std::string_view payload) {
  zmq::message_t out(1 + payload.size());
  out.data<char>()[0] = topic;
  std::memcpy(out.data<char>() + 1, payload.data(), payload.size());
  impl_->events.send(out, zmq::send_flags::none);
}

struct GateSocket::Impl {
  zmq::socket_t dealer;
};
GateSocket::GateSocket(Bus& bus, const std::string& identity)
    : impl_(std::make_unique<Impl>(Impl{zmq::socket_t(bus.impl().context, zmq::socket_type::dealer)})) {
  impl_->dealer.set(zmq::sockopt::routing_id, identity);
  impl_->dealer.set(zmq::sockopt::sndhwm, kHighWater);
  impl_->dealer.set(zmq::sockopt::rcvhwm, kHighWater);
  impl_->dealer.set(zmq::sockopt::linger, 0);
  impl_->dealer.connect(kCore);
}
GateSocket::~GateSocket() = default;
int GateSocket::descriptor() const { return impl_->dealer.get(zmq::sockopt::fd); }

std::optional<BusMessage> GateSocket::receive() {
  zmq::message_t body;
  if (!impl_->dealer.recv(body, zmq::recv_flags::dontwait)) return std::nullopt;
  return from_zmq(body);
}

void GateSocket::send(const BusMessage& message) {
  impl_->dealer.send(to_zmq(message), zmq::send_flags::none);
}

struct Subscription::Impl {
  zmq::socket_t sub;
};
Subscription::Subscription(Bus& bus)
    : impl_(std::make_unique<Impl>(Impl{zmq::socket_t(bus.impl().context, zmq::socket_type::sub)})) {
  impl_->sub.set(zmq::sockopt::rcvhwm, kHighWater);
  impl_->sub.set(zmq::sockopt::linger, 0);
  impl_->sub.set(zmq::sockopt::subscribe, "");
  impl_->sub.connect(kEvents);
}
Subscription::~Subscription() = default;
int Subscription::descriptor() const { return impl_->sub.get(zmq::sockopt::fd); }

std::optional<Subscription::Item> Subscription::receive() {
  zmq::message_t body;
  if (!impl_->sub.recv(body, zmq::recv_flags::dontwait)) return std::nullopt;
  if (body.size() == 0) return std::nullopt;
  return Item{body.data<char>()[0], std::string(body.data<char>() + 1, body.size() - 1)};
}

std::string gate_identity(uint32_t gate) { return "gate-" + std::to_string(gate); }

void append_u64(std::string& out, uint64_t value) {
  char bytes[8];
  std::memcpy(bytes, &value, 8);
  out.append(bytes, 8);
}

uint64_t read_u64(std::string_view bytes, size_t at) {
  WEFT_CHECK(at + 8 <= bytes.size());
  uint64_t value;
  std::memcpy(&value, bytes.data() + at, 8);
  return value;
}

}  // namespace weft::broker
