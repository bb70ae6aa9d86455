// What this peer dials of all that its broker names (links, sources of copies, probes): addresses as far
// inside as the broker itself was reached (net/dial_policy.h), and no more of them than an honest run needs,
// so that nobody makes a scanner of it. What is refused is said, not more often than a person reads. Any
// thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/units.h"
#include "net/dial_policy.h"

namespace weft::peer {

class DialGuard {
 public:
  // Of addresses that are dialled: so many at once, then so many a second. A stage has a few neighbours, each
  // with a few addresses and four connections, all of which may be lost at once.
  static constexpr double kAtOnce = 512, kPerSecond = 16;
  static constexpr Duration kSayEvery = std::chrono::seconds(1);

  struct Options {
    bool dials_private = false;  // the owner says so: also where the broker is elsewhere
    std::function<void(const std::string& line)> log{};  // on whichever thread asked
    std::function<Instant()> now{};
  };
  explicit DialGuard(Options options) : options_(std::move(options)) {}

  // Before it was: as if it were far away.
  void set_reach(net::Reach reach);
  net::Reach reach() const;

  // PermissionDenied: not an address that may be dialled. ResourceExhausted: too many at once.
  Status may_dial(const net::IpAddress& address, uint16_t port);

 private:
  Status judge(const net::IpAddress& address, uint16_t port, Instant now) WEFT_REQUIRES(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  net::Reach reach_ WEFT_GUARDED_BY(mutex_) = net::Reach::Public;
  double left_ WEFT_GUARDED_BY(mutex_) = kAtOnce;
  Instant since_ WEFT_GUARDED_BY(mutex_){}, said_ WEFT_GUARDED_BY(mutex_){};
  bool has_begun_ WEFT_GUARDED_BY(mutex_) = false, has_said_ WEFT_GUARDED_BY(mutex_) = false;
  uint64_t unsaid_ WEFT_GUARDED_BY(mutex_) = 0;
};

// For ConnectOptions; null: nothing is judged.
using MayDial = std::function<Status(const net::IpAddress& address, uint16_t port)>;

}  // namespace weft::peer
