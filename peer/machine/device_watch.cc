#include "peer/machine/device_watch.h"

#include <algorithm>
#include <string>
#include <utility>

namespace weft::peer {

namespace {
std::string text_of(Duration duration) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  if (ms == 0) return "less than 1 ms";
  return ms < 10'000 ? std::to_string(ms) + " ms" : std::to_string(ms / 1000) + " s";
}
}  // namespace

void DeviceWatch::look(Instant now) {
  if (looked_at_) awake_ += std::clamp(now - *looked_at_, Duration{}, kAwakeMax);
  looked_at_ = now;
}

void DeviceWatch::begin(uint64_t stage, std::optional<Work> work, Duration predicted) {
  if (given_.empty()) began_ = awake_;
  given_.push_back({stage, work, predicted});
}

void DeviceWatch::end(uint64_t stage) {
  const bool was_dropped = !given_.empty() && given_.front().is_dropped && given_.front().stage == stage;
  answered();  // what comes later shows that too
  if (was_dropped || given_.empty() || given_.front().stage != stage) return;
  Measured& measured = measured_[stage][given_.front().work];
  ++measured.times;
  measured.sum += awake_ - began_;
  given_.pop_front();
  began_ = awake_;
}

// What it is at is limited by what that took before, until it is done.
bool DeviceWatch::drop(uint64_t stage) {
  const bool is_at_it = !given_.empty() && given_.front().stage == stage;
  if (!is_at_it) measured_.erase(stage);
  const auto behind = given_.begin() + is_at_it;
  given_.erase(std::remove_if(behind, given_.end(), [&](const Given& given) { return given.stage == stage; }),
               given_.end());
  return is_at_it && !std::exchange(given_.front().is_dropped, true);
}

void DeviceWatch::answered() {
  if (given_.empty() || !given_.front().is_dropped) return;
  measured_.erase(given_.front().stage);
  given_.pop_front();
  began_ = awake_;
}

std::optional<Duration> DeviceWatch::usual(const Given& given) const {
  const auto of_stage = measured_.find(given.stage);
  if (of_stage == measured_.end()) return std::nullopt;
  const auto at = of_stage->second.find(given.work);
  if (at == of_stage->second.end()) return std::nullopt;
  return at->second.sum / at->second.times;
}

Duration DeviceWatch::limit(const Given& given) const {
  if (const auto known = usual(given)) return std::max(kFloor, kTimes * *known);
  return std::max(kFirst, kTimes * given.predicted);
}

std::optional<Error> DeviceWatch::overdue() const {
  if (given_.empty()) return std::nullopt;
  const Given& given = given_.front();
  const Duration running = awake_ - began_;
  if (running < limit(given)) return std::nullopt;
  std::string text = "the device has not answered for " + text_of(running);
  if (const auto known = usual(given))
    text += ", a task of this stage takes " + text_of(*known);
  else if (given.work)
    text += ", its first task of this kind";
  else
    text += " while the stage was made ready";
  return Error{ErrorCode::DeviceLost, text + ": it hangs, or something else keeps it busy"};
}

std::optional<Instant> DeviceWatch::next_look() const {
  if (given_.empty() || !looked_at_) return std::nullopt;
  const Duration left = limit(given_.front()) - (awake_ - began_);
  return *looked_at_ + std::clamp(left, Duration{}, kAwakeMax);
}

}  // namespace weft::peer
