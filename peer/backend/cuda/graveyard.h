// What was let go while the device may still use it: kept until an event behind that is over. The thread that
// drives the backend.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "peer/backend/cuda/device.h"

namespace weft::peer::cuda {

class Graveyard {
 public:
  explicit Graveyard(Device& device) : device_(device) {}
  // Waits for what is left, if the device answers.
  ~Graveyard() {
    (void)device_.synchronize();
    for (Grave& grave : graves_) grave.bury();
  }

  // `bury` is called once the stream has done what was submitted to it so far.
  void add(Stream stream, std::function<void()> bury) {
    auto event = device_.make_event(false);
    if (event && device_.record(**event, stream))
      graves_.push_back({std::move(*event), std::move(bury)});
    else
      graves_.push_back({nullptr, std::move(bury)});  // the device is lost, and with it all that is on it
  }
  // Whatever is over.
  void reap() {
    while (!graves_.empty() && is_over(graves_.front())) {
      graves_.front().bury();
      graves_.pop_front();
    }
  }
  // Waits for all.
  Status empty() {
    while (!graves_.empty()) {
      if (graves_.front().event) WEFT_TRY_STATUS(device_.wait_for(*graves_.front().event));
      graves_.front().bury();
      graves_.pop_front();
    }
    return {};
  }

 private:
  struct Grave {
    std::shared_ptr<Event> event;
    std::function<void()> bury;
  };
  bool is_over(const Grave& grave) const {
    if (!grave.event) return false;  // until the end
    const auto over = device_.is_over(*grave.event);
    return over && *over;
  }

  Device& device_;
  std::deque<Grave> graves_;
};

}  // namespace weft::peer::cuda
