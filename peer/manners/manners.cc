#include "peer/manners/manners.h"

#include <cmath>

namespace weft::peer {
namespace {

std::string minutes(Duration duration) {
  const auto all = std::chrono::ceil<std::chrono::seconds>(duration).count();
  return all % 60 == 0 ? std::to_string(all / 60) + " min" : std::to_string(all) + " s";
}
std::string degrees(double celsius) { return std::to_string(std::lround(celsius)) + " °C"; }

std::optional<std::string> of_idle(const std::optional<Duration>& rule, const std::optional<Duration>& idle) {
  if (!rule || (idle && *idle >= *rule)) return std::nullopt;
  if (!idle) return "nobody says whether the machine is in use: there is no logind";
  return "the machine is in use: idle for less than " + minutes(*rule);
}

}  // namespace

std::optional<std::string> Manners::of_heat(const MannersReadings& readings) const {
  if (!rules_.celsius_max) return std::nullopt;
  if (!readings.hottest) return "no temperature can be read";
  const double limit = *rules_.celsius_max;
  const auto& [celsius, where] = *readings.hottest;
  if (celsius > limit) return "too hot: " + where + " is at " + degrees(celsius);
  if (too_hot_ && celsius > limit - kCooler)
    return "cooling: " + where + " is at " + degrees(celsius) + ", and goes on at " +
           degrees(limit - kCooler);
  return std::nullopt;
}

std::vector<std::string> Manners::reasons(const MannersReadings& readings) const {
  std::vector<std::string> all;
  if (!rules_.on_battery && readings.on_battery) all.emplace_back("on battery");
  if (rules_.pause_for_games && readings.game) all.emplace_back("a game runs (GameMode)");
  if (!readings.program.empty()) all.push_back(readings.program + " runs");
  if (auto in_use = of_idle(rules_.idle, readings.idle)) all.push_back(std::move(*in_use));
  if (auto heat = of_heat(readings)) all.push_back(std::move(*heat));
  return all;
}

void Manners::look(const MannersReadings& readings, Instant now) {
  std::vector<std::string> all = reasons(readings);
  too_hot_ = rules_.celsius_max && readings.hottest && of_heat(readings);
  if (all.empty() && readings.about_to_sleep) {
    if (!paused_) only_sleep_ = true;
    all.emplace_back("the machine is about to sleep");
  } else if (!all.empty()) {
    only_sleep_ = false;
  }
  if (!all.empty()) {
    paused_ = true;
    calm_since_.reset();
    reason_.clear();
    for (const std::string& one : all) reason_ += (reason_.empty() ? "" : "; ") + one;
    return;
  }
  if (!paused_) return;
  if (!calm_since_) calm_since_ = now;
  if (!only_sleep_ && now - *calm_since_ < rules_.settle) return;
  paused_ = only_sleep_ = false;
  reason_.clear();
  calm_since_.reset();
}

std::optional<Instant> Manners::until() const {
  if (!paused_ || !calm_since_) return std::nullopt;
  return *calm_since_ + rules_.settle;
}

}  // namespace weft::peer
