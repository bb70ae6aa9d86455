// How many of a link's connections carry its tensors: all, or the first alone where that carries as much. One
// connection keeps what is urgent next to what is sent, and several pay for themselves only where a single
// one does not fill the way (loss, windows that grow slowly).
//
// Both are measured in turn while the link is busy: bytes over the time in which more waited than the
// connections took. It begins with all of them, for one where several are needed costs several times what
// several cost where one is enough. The other way is tried again after pauses that double, and at once when
// what is carried falls to half. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/units.h"

namespace weft::peer {

class StreamChoice {
 public:
  static constexpr double kAsMuch = 0.9;  // of all connections' rate, for the first alone to be preferred
  static constexpr Duration kSettling = std::chrono::milliseconds(700);  // busy, after a change: windows grow
  static constexpr Duration kWindow = std::chrono::milliseconds(1300);   // busy, that a rate is taken over
  static constexpr Duration kPauseMin = std::chrono::minutes(1), kPauseMax = std::chrono::minutes(32);

  bool uses_all() const { return all_ != is_trying_; }
  // So many bytes left in a time in which the link was busy.
  void add(Instant now, Duration busy, uint64_t bytes);

 private:
  void end_window(Instant now, double rate);
  void end_try(Instant now, double rate);
  void change(bool is_trying);

  bool all_ = true;         // as chosen
  bool is_trying_ = false;  // the other way
  Duration settling_ = kSettling, busy_{};
  uint64_t bytes_ = 0;                   // of this window
  double chosen_ = 0, when_chosen_ = 0;  // bytes a second of what is chosen: in its last window; then
  std::optional<Instant> next_try_{};    // none: after the first window
  Duration pause_ = kPauseMin;
};

}  // namespace weft::peer
