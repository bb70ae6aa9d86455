// Who hears a run's events beside the one that shows them: a file of its curves, a command of the user's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cli/report.h"
#include "cli/run_events.h"

namespace weft::cli {

class Listener {
 public:
  virtual ~Listener() = default;
  virtual void hear(const RunEvent& event, int64_t unix_ms, proto::JobNumber job) = 0;
};

// `report`, and each of its events to the listeners, too, before it is shown.
std::unique_ptr<Report> with_listeners(std::unique_ptr<Report> report,
                                       std::vector<std::unique_ptr<Listener>> listeners);

}  // namespace weft::cli
