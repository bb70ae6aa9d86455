#include "peer/desktop/desktop_services.h"

#include <unistd.h>

#include <algorithm>

namespace weft::peer {
namespace {

constexpr Bus::Object kLogind{"org.freedesktop.login1", "/org/freedesktop/login1",
                              "org.freedesktop.login1.Manager"};
constexpr Bus::Object kGameMode{"com.feralinteractive.GameMode", "/com/feralinteractive/GameMode",
                                "com.feralinteractive.GameMode"};
constexpr int kSkips = 10;

}  // namespace

DesktopServices::DesktopServices(Open open) : open_(std::move(open)) {}
DesktopServices::~DesktopServices() { let_it_sleep(); }

Bus* DesktopServices::bus(Bus::Kind kind) {
  Place& place = kind == Bus::Kind::System ? system_ : user_;
  if (place.bus && place.bus->is_lost()) {
    place.bus.reset();
    if (kind == Bus::Kind::System) let_it_sleep();
  }
  if (!place.bus && place.skip-- <= 0) {
    place.bus = open_(kind);
    place.skip = kSkips;
  }
  return place.bus.get();
}

std::optional<Duration> DesktopServices::idle(Duration now) {
  Bus* system = bus(Bus::Kind::System);
  if (system == nullptr) return std::nullopt;
  const auto is_idle = system->flag(kLogind, "IdleHint");
  if (!is_idle) return std::nullopt;
  const auto since = *is_idle ? system->count(kLogind, "IdleSinceHintMonotonic") : std::nullopt;
  if (!since) return Duration{};
  const auto now_us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  const auto since_us = static_cast<int64_t>(std::min<uint64_t>(*since, INT64_MAX));
  return std::chrono::microseconds(std::max<int64_t>(0, now_us - since_us));
}

bool DesktopServices::game_runs() {
  Bus* user = bus(Bus::Kind::User);
  return user != nullptr && user->number(kGameMode, "ClientCount").value_or(0) > 0;
}

bool DesktopServices::about_to_sleep() {
  Bus* system = bus(Bus::Kind::System);
  if (system == nullptr) return false;
  const bool is_about_to = system->flag(kLogind, "PreparingForSleep").value_or(false);
  if (is_about_to) return true;
  if (!delay_ && !asked_) delay_ = system->put_off_sleep(kLogind, "weft", "hands its work over");
  asked_ = true;  // who is refused does not ask each second
  return false;
}

void DesktopServices::let_it_sleep() {
  if (delay_) ::close(*delay_);
  delay_.reset();
  asked_ = false;
}

}  // namespace weft::peer
