#include "peer/service/dial_guard.h"

#include <algorithm>

namespace weft::peer {

void DialGuard::set_reach(net::Reach reach) {
  const MutexLock hold(mutex_);
  reach_ = options_.dials_private ? std::max(reach, net::Reach::Private) : reach;
}

net::Reach DialGuard::reach() const {
  const MutexLock hold(mutex_);
  return reach_;
}

Status DialGuard::may_dial(const net::IpAddress& address, uint16_t port) {
  const Instant now = options_.now();
  std::string line;
  Status allowed;
  {
    const MutexLock hold(mutex_);
    allowed = judge(address, port, now);
    if (allowed) return {};
    if (has_said_ && now - said_ < kSayEvery) {
      ++unsaid_;
      return allowed;
    }
    line =
        "warning dial_refused reason=\"" + allowed.error().message + "\" unsaid=" + std::to_string(unsaid_);
    has_said_ = true;
    said_ = now;
    unsaid_ = 0;
  }
  if (options_.log) options_.log(line);
  return allowed;
}

Status DialGuard::judge(const net::IpAddress& address, uint16_t port, Instant now) {
  WEFT_TRY_STATUS(net::check_dial(address, port, reach_));
  if (has_begun_) left_ = std::min(kAtOnce, left_ + seconds(now - since_) * kPerSecond);
  has_begun_ = true;
  since_ = now;
  if (left_ < 1)
    return fail(ErrorCode::ResourceExhausted,
                "not dialled: the broker names more addresses than any run needs");
  --left_;
  return {};
}

}  // namespace weft::peer
