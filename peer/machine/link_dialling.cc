#include "peer/machine/link_dialling.h"

#include <algorithm>

namespace weft::peer {

namespace {
constexpr Duration kRetryDelay = std::chrono::milliseconds(50);
constexpr Duration kTurnMin = std::chrono::milliseconds(1500);  // a handshake through a slow line
}  // namespace

std::string LinkDialling::begin(bool over_relay) {
  is_under_way_ = true;
  is_over_relay_ = over_relay || address_ >= addresses_.size();
  return is_over_relay_ ? std::string() : addresses_[address_];
}

void LinkDialling::fail(const std::string& why) {
  note(is_over_relay_ ? "relay" : addresses_[address_], why);
  go_on();
  count_try();
}

void LinkDialling::came_up(bool relayed) {
  was_relayed_ = relayed;
  problems_.clear();
}

std::string LinkDialling::problems() const {
  std::string text;
  for (const auto& [where, what] : problems_) text += (text.empty() ? "" : "; ") + where + ": " + what;
  return text.empty() ? "nobody came" : text;
}

Duration LinkDialling::pause(Duration longest) const {
  const size_t rounds = tries_ / places();
  const Duration pause = kRetryDelay * (1 << std::min<size_t>(rounds, 10));
  return rounds == 0 ? Duration::zero() : std::min(longest, pause);
}

Duration LinkDialling::deadline(const LinkTimes& times, bool was_up) const {
  if (!was_up) return times.address_deadline;
  const Duration turn = times.heal_deadline / (2 * static_cast<int64_t>(places()));
  return std::clamp(turn, std::min(kTurnMin, times.address_deadline), times.address_deadline);
}

}  // namespace weft::peer
