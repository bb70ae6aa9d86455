#include "broker/service/inbox.h"

#include <utility>

namespace weft::broker {

void Inbox::leave(std::function<void()> work) {
  {
    const MutexLock lock(mutex_);
    work_.push_back(std::move(work));
  }
  const MutexLock lock(wake_mutex_);
  wake_->send({.what = Wake{}});
}

void Inbox::empty() {
  std::deque<std::function<void()>> work;
  {
    const MutexLock lock(mutex_);
    work.swap(work_);
  }
  for (auto& item : work) item();
}

}  // namespace weft::broker
