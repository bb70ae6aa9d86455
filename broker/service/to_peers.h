// The way from the door to the gate, which comes after it and goes before it.
#pragma once

#include <utility>

#include "base/mutex.h"
#include "broker/service/gate.h"

namespace weft::broker {

class ToPeers {
 public:
  void set(Gate* gate) {
    const MutexLock lock(mutex_);
    gate_ = gate;
  }
  // As TellPeer (served.h).
  void tell(const PeerId& to, proto::Message message) {
    const MutexLock lock(mutex_);
    if (gate_ != nullptr) gate_->tell_peer(to, std::move(message));
  }

 private:
  Mutex mutex_;
  Gate* gate_ WEFT_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace weft::broker
