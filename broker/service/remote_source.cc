#include "broker/service/remote_source.h"

namespace weft::broker {

namespace {

// On the loop, which holds what it needs: the source may have gone by then.
template <typename Work>
void post_to(net::Loop& loop, std::shared_ptr<RemoteWork> work, Work what) {
  loop.post([&loop, work = std::move(work), what = std::move(what)]() mutable {
    const MutexLock lock(work->mutex);
    what(work->requests, loop.now());
  });
}

}  // namespace

RemoteSource::RemoteSource(net::Loop& loop, std::shared_ptr<RemoteWork> work)
    : loop_(loop), work_(std::move(work)) {}

int64_t RemoteSource::context() const {
  const MutexLock lock(work_->mutex);
  return work_->requests.context();
}

int64_t RemoteSource::vocabulary() const {
  const MutexLock lock(work_->mutex);
  return work_->requests.vocabulary();
}

RemoteSource::~RemoteSource() {
  post_to(loop_, work_, [](RemoteRequests& requests, Instant) {
    requests.close({ErrorCode::Unavailable, "the model is not served any more"});
  });
}

void RemoteSource::add(serve::Request request, serve::Listener listener, Begun begun) {
  post_to(loop_, work_,
          [request = std::move(request), listener = std::move(listener), begun = std::move(begun)](
              RemoteRequests& requests, Instant now) mutable {
            requests.add(std::move(request), std::move(listener), std::move(begun), now);
          });
}

void RemoteSource::cancel(uint64_t id) {
  post_to(loop_, work_, [id](RemoteRequests& requests, Instant now) { requests.cancel(id, now); });
}

serve::TokenSource::Pulse RemoteSource::pulse() const {
  const MutexLock lock(work_->mutex);
  return work_->requests.pulse();
}

Metrics RemoteSource::metrics() const {
  const MutexLock lock(work_->mutex);
  return work_->requests.metrics();
}

}  // namespace weft::broker
