#include "peer/service/stream_choice.h"

namespace weft::peer {

void StreamChoice::add(Instant now, Duration busy, uint64_t bytes) {
  if (settling_ > Duration{}) {
    settling_ -= busy;
    return;
  }
  busy_ += busy;
  bytes_ += bytes;
  if (busy_ >= kWindow) end_window(now, static_cast<double>(bytes_) / seconds(busy_));
}

void StreamChoice::end_window(Instant now, double rate) {
  busy_ = {};
  bytes_ = 0;
  if (is_trying_) return end_try(now, rate);
  chosen_ = rate;
  const bool has_fallen = rate < when_chosen_ / 2;
  if (has_fallen) pause_ = kPauseMin;
  if (has_fallen || !next_try_ || now >= *next_try_) change(true);
}

void StreamChoice::end_try(Instant now, double rate) {
  const double of_first = all_ ? rate : chosen_, of_all = all_ ? chosen_ : rate;
  const bool all = of_first < kAsMuch * of_all;
  if (all != all_) {
    all_ = all;
    chosen_ = rate;
    pause_ = kPauseMin;
  }
  when_chosen_ = chosen_;
  next_try_ = now + pause_;
  pause_ = std::min(2 * pause_, kPauseMax);
  change(false);
}

void StreamChoice::change(bool is_trying) {
  is_trying_ = is_trying;
  settling_ = kSettling;
}

}  // namespace weft::peer
