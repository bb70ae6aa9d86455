#include "peer/service/probe_meter.h"

#include <algorithm>
#include <cmath>

namespace weft::peer {

namespace {
constexpr uint64_t kWindowMin = 16 << 10;
constexpr Duration kSlack = std::chrono::milliseconds(50);  // beyond the round trip: nobody answers at once
constexpr double kAhead = 1.25;                             // of what a round trip holds
constexpr double kRise = 1.15;                              // less is no rise
constexpr double kStable = 0.05;                            // how far two halves may differ
constexpr Duration kSteadyMin = std::chrono::milliseconds(250);
constexpr size_t kArrivalsMin = 12;
}  // namespace

ProbeMeter::ProbeMeter(const Limits& limits, Instant now)
    : limits_(limits),
      began_(now),
      window_(std::min(kWindowMin, limits.bytes_max)),
      asked_(window_),
      epoch_began_(now) {}

void ProbeMeter::on_bytes(uint64_t size, Instant now) {
  received_ += size;
  arrivals_.push_back({now, received_});
  if (received_ - epoch_from_ >= window_) end_epoch(now);
  asked_ = std::max(asked_, std::min(received_ + window_, limits_.bytes_max));
}

// While the window is what may hold the rate down, the next one is twice as large.
void ProbeMeter::end_epoch(Instant now) {
  const double rate =
      static_cast<double>(received_ - epoch_from_) / std::max(seconds(now - epoch_began_), 1e-9);
  const double full = kAhead * std::max(rate, best_) * seconds(limits_.round_trip + kSlack);
  const bool was_full = static_cast<double>(window_) >= full;
  if (!steady_ && rate <= best_ * kRise && (was_full || window_ >= limits_.bytes_max / 4))
    steady_ = arrivals_.size() - 1;
  best_ = std::max(best_, rate);
  if (!was_full) window_ = std::min(2 * window_, std::max(limits_.bytes_max / 4, window_));
  epoch_began_ = now;
  epoch_from_ = received_;
}

size_t ProbeMeter::first_counted() const {
  if (steady_ && arrivals_.size() - *steady_ >= kArrivalsMin) return *steady_;
  if (arrivals_.size() >= 4 * kArrivalsMin) {  // it was still rising
    const auto last = std::find_if(arrivals_.begin(), arrivals_.end(), [&](const Arrival& arrival) {
      return arrival.received >= received_ / 4 * 3;
    });
    return static_cast<size_t>(last - arrivals_.begin());
  }
  const Instant quarter = began_ + (arrivals_.back().at - began_) / 4;
  const auto first = std::find_if(arrivals_.begin(), arrivals_.end(),
                                  [&](const Arrival& arrival) { return arrival.at >= quarter; });
  return static_cast<size_t>(first - arrivals_.begin());
}

// What came after `first`, up to `last`.
double ProbeMeter::rate_between(size_t first, size_t last) const {
  const Arrival &from = arrivals_[first], &to = arrivals_[last];
  return static_cast<double>(to.received - from.received) / std::max(seconds(to.at - from.at), 1e-9);
}

double ProbeMeter::bytes_per_second() const {
  if (arrivals_.empty()) return 0;
  const size_t first = first_counted(), last = arrivals_.size() - 1;
  if (arrivals_[last].at > arrivals_[first].at) return rate_between(first, last);
  return static_cast<double>(received_) / std::max(seconds(arrivals_[last].at - began_), 1e-9);
}

bool ProbeMeter::is_done(Instant now) const {
  if (received_ >= limits_.bytes_max || now >= deadline()) return true;
  if (!steady_ || arrivals_.size() - *steady_ < kArrivalsMin) return false;
  const size_t last = arrivals_.size() - 1;
  const Duration steady = arrivals_[last].at - arrivals_[*steady_].at;
  if (steady < std::max(kSteadyMin, 2 * limits_.round_trip)) return false;
  const Instant middle = arrivals_[*steady_].at + steady / 2;
  const auto half = std::find_if(arrivals_.begin() + static_cast<std::ptrdiff_t>(*steady_), arrivals_.end(),
                                 [&](const Arrival& arrival) { return arrival.at >= middle; });
  const auto at = static_cast<size_t>(half - arrivals_.begin());
  if (at == *steady_ || at == last) return false;
  const double before = rate_between(*steady_, at), after = rate_between(at, last);
  return std::abs(before - after) <= kStable * std::max(before, after);
}

}  // namespace weft::peer
