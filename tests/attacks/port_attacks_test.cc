// What strangers do to the broker's port, and what it may cost the peers that are there: nothing.
#include <gtest/gtest.h>
#include <poll.h>

#include <vector>

#include "tests/attacks/raw_client.h"
#include "tests/attacks/siege.h"

namespace weft::attacks {
namespace {

// One connection without a token that renews its keys for as long as it is let. It once kept the gate busy
// until every peer had been given up.
TEST(PortAttack, KeysRenewedWithoutEnd) {
  Siege siege;
  siege.withstands([&](const std::atomic<bool>& is_over) {
    const auto identity = *security::Identity::generate();
    while (!is_over) {
      RawTls tls(siege.broker().endpoint(), *identity);
      if (!tls.handshake()) continue;
      while (!is_over && tls.renew_key()) {
      }
    }
  });
}

// Half-open sockets: some silent, some with the head of a handshake that announces 128 KiB, some with a part
// of an honest one.
class HalfOpen {
 public:
  HalfOpen(const net::Endpoint& broker, size_t count) : broker_(broker), sockets_(count) {}
  // Those that were dropped are made anew, from addresses of 127.0.0.0/8 by turns.
  void renew(size_t addresses, const std::atomic<bool>& is_over) {
    for (size_t at = 0; at < sockets_.size() && !is_over; ++at) {
      if (sockets_[at] && !sockets_[at]->is_closed()) continue;
      const std::string from = "127.0.0." + std::to_string(1 + at % addresses + (addresses > 1 ? 1 : 0));
      sockets_[at] = std::make_unique<RawSocket>(broker_, from);
      if (at % 3 == 1) sockets_[at]->send(hello(0x4000, 0x1ff00, 60'000));
      if (at % 3 == 2) sockets_[at]->send(hello(0x1f00, 0x1e00, 7'000));
    }
  }

 private:
  static std::vector<std::byte> hello(size_t record, size_t message, size_t size) {
    std::vector<std::byte> bytes;
    for (const size_t value : {size_t{0x16}, size_t{3}, size_t{1}, record >> 8, record & 0xff, size_t{1},
                               message >> 16, message >> 8 & 0xff, message & 0xff})
      bytes.push_back(static_cast<std::byte>(value));
    bytes.resize(size, std::byte{1});
    return bytes;
  }
  net::Endpoint broker_;
  std::vector<std::unique_ptr<RawSocket>> sockets_;
};

// All slots of the port, from eight addresses, made anew as fast as one thread can.
TEST(PortAttack, HalfOpenHandshakesFromManyAddresses) {
  Siege siege;
  siege.withstands([&](const std::atomic<bool>& is_over) {
    HalfOpen sockets(siege.broker().endpoint(), 600);
    while (!is_over) sockets.renew(8, is_over);
  });
}

// All slots of one address, held for as long as they are let: newcomers come from the same.
TEST(PortAttack, HalfOpenHandshakesFromTheNewcomersAddress) {
  Siege siege;
  siege.withstands([&](const std::atomic<bool>& is_over) {
    HalfOpen sockets(siege.broker().endpoint(), 100);
    while (!is_over) {
      sockets.renew(1, is_over);
      ::poll(nullptr, 0, 1000);  // ms: an attacker's patience
    }
  });
}

}  // namespace
}  // namespace weft::attacks
