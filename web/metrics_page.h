// A port of its own on which a process says what it counts, for Prometheus: GET /metrics, and nothing else.
// It is HTTP without TLS and asks for no token, so it belongs on loopback or a network of one's own.
#pragma once

#include <memory>

#include "base/metrics.h"
#include "base/mutex.h"
#include "base/result.h"
#include "net/endpoint.h"
#include "web/server.h"

namespace weft::web {

// What a process counted last. Any thread.
class LatestMetrics {
 public:
  void set(Metrics metrics) {
    const MutexLock lock(mutex_);
    metrics_ = std::move(metrics);
  }
  Metrics get() const {
    const MutexLock lock(mutex_);
    return metrics_;
  }

 private:
  mutable Mutex mutex_;
  Metrics metrics_ WEFT_GUARDED_BY(mutex_);
};

// Where it listens on loopback, who names this machine otherwise in Host (a page in a browser, whose name was
// made to lead here) is refused. Errors: Server::start()'s.
Result<std::unique_ptr<Server>> serve_metrics(const net::Endpoint& endpoint,
                                              std::shared_ptr<const LatestMetrics> metrics);

}  // namespace weft::web
