#include "broker/service/bus.h"

#include <zmq.hpp>

#include "base/check.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace weft::broker {

namespace {
constexpr const char* kCore = "inproc://core";
constexpr const char* kEvents = "inproc://events";
// Messages; what a connection may have in the core, and in its queue, bounds them long before.
constexpr int kHighWater = 1'000'000;

// What was done to a value before it was handed over comes before what is done after it was taken over.
// ZeroMQ sees to that, but it is not instrumented, so TSan has to be told.
#if defined(__SANITIZE_THREAD__)
void hand_over(void* value) { __tsan_release(value); }
void take_over(void* value) { __tsan_acquire(value); }
#else
void hand_over(void* /*value*/) {}
void take_over(void* /*value*/) {}
#endif

// A message whose bytes are a shared_ptr: whoever lets go of the message last, ZeroMQ itself where it drops
// one, lets go of the value.
template <typename T>
zmq::message_t wrap(std::shared_ptr<const T> value) {
  using Pointer = std::shared_ptr<const T>;
  auto* const boxed = new Pointer(std::move(value));
  hand_over(boxed);
  return {boxed, sizeof(Pointer), [](void* pointer, void*) {
            take_over(pointer);
            delete static_cast<Pointer*>(pointer);
          }};
}

template <typename T>
std::shared_ptr<const T> unwrap(zmq::message_t& message) {
  WEFT_CHECK(message.size() == sizeof(std::shared_ptr<const T>));
  auto* const boxed = message.data<std::shared_ptr<const T>>();
  take_over(boxed);
  std::shared_ptr<const T> value = *boxed;
  hand_over(boxed);  // to whoever lets go of it last
  return value;
}

void set_limits(zmq::socket_t& socket) {
  socket.set(zmq::sockopt::sndhwm, kHighWater);
  socket.set(zmq::sockopt::rcvhwm, kHighWater);
  socket.set(zmq::sockopt::linger, 0);
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
    for (zmq::socket_t* socket : {&router, &events}) set_limits(*socket);
    router.bind(kCore);
    events.bind(kEvents);
  }
};
CoreSocket::CoreSocket(Bus& bus) : impl_(std::make_unique<Impl>(bus)) {}
CoreSocket::~CoreSocket() = default;

std::shared_ptr<const ToCore> CoreSocket::receive(Duration timeout) {
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(timeout);
  impl_->router.set(zmq::sockopt::rcvtimeo, static_cast<int>(wait.count()));
  zmq::message_t from, body;
  if (!impl_->router.recv(from)) return nullptr;
  WEFT_CHECK(impl_->router.recv(body).has_value());
  return unwrap<ToCore>(body);
}

void CoreSocket::send(uint32_t gate, std::shared_ptr<const ToGate> message) {
  const std::string identity = gate_identity(gate);
  impl_->router.send(zmq::buffer(identity), zmq::send_flags::sndmore);
  impl_->router.send(wrap(std::move(message)), zmq::send_flags::none);
}

void CoreSocket::publish(std::shared_ptr<const Published> value) {
  impl_->events.send(wrap(std::move(value)), zmq::send_flags::none);
}

struct GateSocket::Impl {
  zmq::socket_t dealer;
};
GateSocket::GateSocket(Bus& bus, const std::string& identity)
    : impl_(std::make_unique<Impl>(Impl{zmq::socket_t(bus.impl().context, zmq::socket_type::dealer)})) {
  impl_->dealer.set(zmq::sockopt::routing_id, identity);
  set_limits(impl_->dealer);
  impl_->dealer.connect(kCore);
}
GateSocket::~GateSocket() = default;
int GateSocket::descriptor() const { return impl_->dealer.get(zmq::sockopt::fd); }

std::shared_ptr<const ToGate> GateSocket::receive() {
  zmq::message_t body;
  if (!impl_->dealer.recv(body, zmq::recv_flags::dontwait)) return nullptr;
  return unwrap<ToGate>(body);
}

void GateSocket::send(ToCore message) {
  impl_->dealer.send(wrap(std::make_shared<const ToCore>(std::move(message))), zmq::send_flags::none);
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

std::shared_ptr<const Published> Subscription::receive() {
  zmq::message_t body;
  if (!impl_->sub.recv(body, zmq::recv_flags::dontwait)) return nullptr;
  return unwrap<Published>(body);
}

std::string gate_identity(uint32_t gate) { return "gate-" + std::to_string(gate); }

}  // namespace weft::broker
