// Whether a stage needs far longer than was promised of it, and than the others need of theirs. A stage is
// judged by windows of computing, so that a peer that becomes slow late is found as soon as one that was slow
// from the beginning. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/units.h"

namespace weft::broker {

// A stage that needs `factor` times what was promised, and as many times what the others need of theirs, over
// at least `after` of computing, is given to another peer. Stages of which less than `promise_min` seconds a
// microbatch was promised are not judged: they are mostly overhead.
struct SlowOptions {
  double factor = 10;
  Duration after = std::chrono::seconds(5);
  double promise_min = 0.5e-3;
};

// What a stage has computed, as it says.
class WorkWindow {
 public:
  // Both count from the beginning. Whether any segment is new; nothing: it says less than before, which says
  // nothing.
  std::optional<bool> say(uint64_t segments, double busy);
  bool has_said() const { return has_said_; }
  uint64_t segments() const { return segments_; }
  bool is_whole(const SlowOptions& options) const;
  // How many times what was promised it needs: over this window when that says something, else over the one
  // before. 0: nobody knows yet. `promised`: seconds for a segment.
  double slowness(const SlowOptions& options, double promised) const;
  // The next one begins.
  void end(double slowness);

 private:
  uint64_t segments_before_ = 0, segments_ = 0;  // until the window began, and until now
  double busy_before_ = 0, busy_ = 0;
  double slowness_before_ = 0;  // of the last whole window
  bool has_said_ = false;
};

// What the others need, as a multiple of what was promised: the middle one; at least 1, also without others.
double usual_slowness(std::vector<double> others);

}  // namespace weft::broker
