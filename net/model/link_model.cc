#include "net/model/link_model.h"

#include <algorithm>
#include <cmath>

namespace weft::net {

namespace {

constexpr double kBurstNs = 2e6;  // what a late wake-up of this process may cost
constexpr double kBurstBytesMin = 4 << 10, kBurstBytesMax = 32 << 10;
constexpr double kQueueSeconds = 0.2;
constexpr size_t kSizeMin = 256 << 10, kSizeMax = 64 << 20;
constexpr int kLossesMax = 8;  // of one segment: TCP would wait ever longer, a peer is given up before

ShapeDirection sane(ShapeDirection direction) {
  if (!(direction.bytes_per_second > 0) || !std::isfinite(direction.bytes_per_second))
    direction.bytes_per_second = 0;
  direction.delay = std::max(direction.delay, Duration::zero());
  direction.jitter = std::max(direction.jitter, Duration::zero());
  direction.loss = direction.loss > 0 ? std::min(direction.loss, 1.0) : 0;
  return direction;
}

Duration burst_of(double bytes_per_second) {
  if (bytes_per_second == 0) return {};
  const double bytes = std::clamp(bytes_per_second * kBurstNs * 1e-9, kBurstBytesMin, kBurstBytesMax);
  return Duration(static_cast<int64_t>(std::min(bytes / bytes_per_second, 3600.0) * 1e9));
}

}  // namespace

LinkModel::LinkModel(const ShapeDirection& direction, Duration round_trip, uint64_t seed, uint64_t stream)
    : direction_(sane(direction)),
      round_trip_(std::max(round_trip, Duration::zero())),
      lost_below_(static_cast<uint64_t>(std::llround(direction_.loss * 0x1p32))),
      rng_(seed, stream),
      clock_(direction_.bytes_per_second, burst_of(direction_.bytes_per_second)) {}

bool LinkModel::is_transparent() const {
  return !clock_.is_limited() && direction_.delay == Duration::zero() &&
         direction_.jitter == Duration::zero() && direction_.loss == 0;
}

size_t LinkModel::size_max(double line_rate) const {
  double rate = direction_.bytes_per_second;
  if (line_rate > 0) rate = rate > 0 ? std::min(rate, line_rate) : line_rate;
  if (rate == 0) return kSizeMax;
  const double inside = rate * (seconds(direction_.delay) + kQueueSeconds);
  return static_cast<size_t>(std::clamp(inside, double{kSizeMin}, double{kSizeMax}));
}

Instant LinkModel::enter(size_t size, Instant now) {
  Instant out = clock_.pass(size, now) + direction_.delay;
  if (direction_.jitter > Duration::zero())
    out += Duration(static_cast<int64_t>(rng_.below(static_cast<uint64_t>(direction_.jitter.count()))));
  if (lost_below_ > 0)
    for (int losses = 0; losses < kLossesMax && rng_.next_u32() < lost_below_; ++losses) out += round_trip_;
  last_ = std::max(last_, out);
  return last_;
}

}  // namespace weft::net
