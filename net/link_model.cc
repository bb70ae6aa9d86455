#include "net/link_model.h"

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

}  // namespace

LinkModel::LinkModel(const ShapeDirection& direction, Duration round_trip, uint64_t seed, uint64_t stream)
    : direction_(sane(direction)), round_trip_(round_trip), rng_(seed, stream) {
  if (direction_.bytes_per_second == 0) return;
  const double bytes =
      std::clamp(direction_.bytes_per_second * kBurstNs * 1e-9, kBurstBytesMin, kBurstBytesMax);
  burst_ns_ = bytes / direction_.bytes_per_second * 1e9;
}

bool LinkModel::is_transparent() const {
  return direction_.bytes_per_second == 0 && direction_.delay == Duration::zero() &&
         direction_.jitter == Duration::zero() && direction_.loss == 0;
}

size_t LinkModel::size_max() const {
  if (direction_.bytes_per_second == 0) return kSizeMax;
  const double inside = direction_.bytes_per_second * (seconds(direction_.delay) + kQueueSeconds);
  return static_cast<size_t>(std::clamp(inside, double{kSizeMin}, double{kSizeMax}));
}

Instant LinkModel::enter(size_t size, Instant now) {
  if (!is_used_) {
    is_used_ = true;
    origin_ = now;
    last_ = now;
  }
  Instant out = now;
  if (direction_.bytes_per_second > 0) {
    const auto now_ns = static_cast<double>((now - origin_).count());
    free_ns_ = std::max(free_ns_, now_ns - burst_ns_) +
               static_cast<double>(size) / direction_.bytes_per_second * 1e9;
    out = origin_ + Duration(static_cast<int64_t>(std::max(free_ns_, now_ns)));
  }
  out += direction_.delay;
  if (direction_.jitter > Duration::zero())
    out += Duration(static_cast<int64_t>(rng_.uniform() * static_cast<double>(direction_.jitter.count())));
  if (direction_.loss > 0)
    for (int losses = 0; losses < kLossesMax && rng_.uniform() < direction_.loss; ++losses)
      out += round_trip_;
  last_ = std::max(last_, out);
  return last_;
}

}  // namespace weft::net
