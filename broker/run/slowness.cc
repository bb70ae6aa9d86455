#include "broker/run/slowness.h"

#include <algorithm>

namespace weft::broker {

std::optional<bool> WorkWindow::say(uint64_t segments, double busy) {
  if (segments < segments_ || busy < busy_) return std::nullopt;
  const bool is_new = segments > segments_;
  has_said_ = true;
  segments_ = segments;
  busy_ = busy;
  return is_new;
}

bool WorkWindow::is_whole(const SlowOptions& options) const {
  return busy_ - busy_before_ >= seconds(options.after);
}

double WorkWindow::slowness(const SlowOptions& options, double promised) const {
  const uint64_t done = segments_ - segments_before_;
  // The one at hand counts as done: a stage that has not done its first is slow too.
  if (done == 0 && !is_whole(options)) return slowness_before_;
  return (busy_ - busy_before_) / (promised * static_cast<double>(std::max<uint64_t>(1, done)));
}

void WorkWindow::end(double slowness) {
  slowness_before_ = slowness;
  segments_before_ = segments_;
  busy_before_ = busy_;
}

double usual_slowness(std::vector<double> others) {
  if (others.empty()) return 1;
  const auto middle = others.begin() + static_cast<long>(others.size() / 2);
  std::nth_element(others.begin(), middle, others.end());
  return std::max(1.0, *middle);
}

}  // namespace weft::broker
