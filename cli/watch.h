// Showing something again and again, until it is over or its user has seen enough.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/broker_call.h"

namespace weft::cli {

// Lines that take each other's place: on a terminal at its top, no wider and no higher than it is; elsewhere
// below each other, and only where something changed.
class Screen {
 public:
  explicit Screen(std::FILE* out);
  void show(const std::vector<std::string>& lines);
  bool is_unread() const;  // what was shown could not be written: the reader is gone

 private:
  void redraw(const std::vector<std::string>& lines);

  std::FILE* out_;
  bool terminal_, begun_ = false;
  std::vector<std::string> shown_;
};

// Asks every two seconds, over broken connections and restarts of the broker. `look` asks, shows, and says
// whether that was the last time. Returns an exit code: 0 as well when the user interrupted.
Result<int> watch(BrokerCall& session, const std::function<Result<bool>(Client&)>& look);

}  // namespace weft::cli
