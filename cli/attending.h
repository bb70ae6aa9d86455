// A peer that comes and goes as its owner wants: it works within its hours, while it is not paused and while
// its manners let it, hands its stage over when that ends, and comes back by itself. While it is away it
// holds neither its device nor its memory. Where somebody wants the machine back now it is not waited for
// long: what is not handed over by then is gone on with elsewhere from its last copy.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "base/result.h"
#include "cli/attendance.h"
#include "cli/peer_control.h"
#include "cli/signals.h"
#include "peer/desktop/machine_watch.h"
#include "peer/service/peer_service.h"
#include "web/metrics_page.h"

namespace weft::cli {

struct Attending {
  peer::PeerServiceOptions service;
  Attendance attendance{};
  // Called before the first visit, once it is to work: what the device can do is measured.
  std::function<Status(peer::PeerServiceOptions&)> prepare{};
  std::unique_ptr<peer::MachineWatch> watch{};  // null: no manners
  std::filesystem::path root = "/";             // of the machine's files
  // Tells who sits before the machine; empty: nobody.
  std::function<void(const std::string& title, const std::string& text)> notify{};
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
