#include "broker/service/gate_bus.h"

namespace weft::broker {

GateBus::GateBus(net::Loop& loop, Bus& bus, uint32_t gate, Outside& outside)
    : loop_(loop),
      gate_(gate),
      outside_(outside),
      core_(bus, gate_identity(gate)),
      published_(bus),
      core_watch_(loop.watch_readable(core_.descriptor(), [this] { drain(); })),
      published_watch_(loop.watch_readable(published_.descriptor(), [this] { drain(); })) {}

void GateBus::say(decltype(ToCore::what) what, uint64_t size) {
  core_.send({.gate = gate_, .size = size, .what = std::move(what)});
  if (std::exchange(is_drain_posted_, true)) return;
  loop_.post([this] {
    is_drain_posted_ = false;
    drain();
  });
}

// The descriptors are edge-triggered: both sockets are emptied wherever one of them may have become readable.
void GateBus::drain() {
  for (bool more = true; more;) {
    more = false;
    while (const auto value = published_.receive()) {
      outside_.on_published(value);
      more = true;
    }
    while (const auto message = core_.receive()) {
      outside_.on_bus(*message);
      more = true;
    }
  }
}

void GateBus::drain_published() {
  while (const auto value = published_.receive()) outside_.on_published(value);
}

}  // namespace weft::broker
