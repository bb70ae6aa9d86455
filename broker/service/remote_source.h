// RemoteRequests as a source of tokens: any thread asks, a loop's thread does the work and tells listeners.
#pragma once

#include <memory>

#include "base/mutex.h"
#include "broker/service/remote_requests.h"
#include "net/loop.h"

namespace weft::broker {

// The requests, and who may look at them meanwhile.
struct RemoteWork {
  explicit RemoteWork(RemoteRequests begin) : requests(std::move(begin)) {}
  mutable Mutex mutex;
  RemoteRequests requests WEFT_GUARDED_BY(mutex);
};

// The loop outlives it, and runs what it posts with its own clock's time.
class RemoteSource final : public serve::TokenSource {
 public:
  RemoteSource(net::Loop& loop, std::shared_ptr<RemoteWork> work);
  ~RemoteSource() override;  // what is open ends as Unavailable

  int64_t context() const override;
  int64_t vocabulary() const override;
  void add(serve::Request request, serve::Listener listener, Begun begun = {}) override;
  void cancel(uint64_t id) override;
  Pulse pulse() const override;
  Metrics metrics() const override;

 private:
  net::Loop& loop_;
  const std::shared_ptr<RemoteWork> work_;
};

}  // namespace weft::broker
