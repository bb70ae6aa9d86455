// The paths of the page. All but its own files and /api/session need a session where a key is asked for.
//
//   GET  /, /page.js, ...   the page's files (ui/assets.h)
//   POST /api/session       {"key": K}: a cookie
//   GET  /api/state         what the broker says, as JSON (ui/board.h):
//   ?job=N&generation=G&points=P&evaluations=E GET  /api/models        {"models": [...]}, that can be tried
//   POST /api/try           {"model", "prompt", "max_tokens", "temperature", "chat"}: text as server-sent
//   events POST /api/stop, /api/resume   {"job": N} GET  /plan?job=N        how a job was planned, as a page
//
// Nothing else can be changed from it. Errors are {"error": "..."} with their status.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/units.h"
#include "ui/access.h"
#include "ui/broker_view.h"
#include "web/server.h"

namespace weft::ui {

struct PageParts {
  AccessOptions access{};
  std::shared_ptr<BrokerView> broker;
  std::shared_ptr<ModelView> models;  // nullptr: nobody said where models are served
  std::function<Instant()> clock;
  std::function<int64_t()> unix_ms;
  std::function<std::string()> draw;  // something nobody can guess, for a cookie
};

// Its destruction interrupts both views, and waits for what was asked of them. REQUIRES: all but `models` is
// there.
std::shared_ptr<web::Handler> make_page(PageParts parts);

// Of the server that it stands behind: a few people, and nothing large.
web::ServerLimits page_limits();

}  // namespace weft::ui
