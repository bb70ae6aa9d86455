// A peer that comes and goes as its owner wants: it works within its hours and while it is not paused, hands
// its stage over when that ends, and comes back by itself. While it is away it holds neither its device nor
// its memory.
#pragma once

#include <memory>

#include "base/result.h"
#include "cli/attendance.h"
#include "cli/peer_control.h"
#include "cli/signals.h"
#include "peer/service/peer_service.h"
#include "web/metrics_page.h"

namespace weft::cli {

struct Attending {
  peer::PeerServiceOptions service;
  Attendance attendance{};
  std::unique_ptr<PeerControl> control{};  // null: nobody can pause it
  Signals reload{};                        // a signal beside those that end it, and what it does
  std::function<void()> on_reload{};
  std::shared_ptr<web::LatestMetrics> metrics{};  // is told what the peer counts; null: nobody watches
};

// Until it is told to leave, or was refused for good: what `weft join` ends with. REQUIRES: stop_signals()
// and those of `reload` are blocked in every thread.
Result<int> attend(Attending attending);

// A thread waits for a device and would be waited for: the process ends, and nothing is destroyed.
[[noreturn]] void end_at_once(const Result<int>& result);

}  // namespace weft::cli
