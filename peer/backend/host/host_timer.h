// The timer of a backend whose work is done when its calls return: the machine's clock.
#pragma once

#include <chrono>

#include "peer/backend/download.h"

namespace weft::peer {

class HostTimer final : public Timer {
 public:
  Status stop() override {
    end_ = Clock::now();
    return {};
  }
  Result<Duration> elapsed() override { return end_ - begin_; }
  bool is_over() const override { return true; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now(), end_ = begin_;
};

}  // namespace weft::peer
