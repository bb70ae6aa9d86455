// A gate's end of the bus: hands on what the core says and what is published, each in its order. Belongs to
// the loop's thread.
#pragma once

#include <memory>

#include "broker/service/bus.h"
#include "net/loop.h"

namespace weft::broker {

class GateBus {
 public:
  class Outside {
   public:
    virtual ~Outside() = default;
    virtual void on_bus(const ToGate& message) = 0;
    virtual void on_published(const std::shared_ptr<const Published>& value) = 0;
  };
  // All outlive this.
  GateBus(net::Loop& loop, Bus& bus, uint32_t gate, Outside& outside);

  void say(decltype(ToCore::what) what, uint64_t size = 0);
  // What has come until now is handed on before this returns: all of it, or what was published.
  void drain();
  void drain_published();

 private:
  net::Loop& loop_;
  const uint32_t gate_;
  Outside& outside_;
  GateSocket core_;
  Subscription published_;
  std::unique_ptr<net::Loop::Watch> core_watch_, published_watch_;
  bool is_drain_posted_ = false;
};

}  // namespace weft::broker
