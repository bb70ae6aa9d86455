#include "plan/local_rounds.h"

#include <algorithm>
#include <numeric>

namespace weft::plan {

double LocalRounds::seconds_a_round() const {
  double slowest = 0;
  for (size_t replica = 0; replica < step_seconds.size(); ++replica)
    slowest = std::max(slowest, static_cast<double>(share(replica)) * step_seconds[replica]);
  return slowest;
}

double LocalRounds::seconds_a_busy_round() const {
  double slowest = seconds_a_round();
  const double even = 1 / static_cast<double>(step_seconds.size());
  for (size_t replica = 0; replica < incoming_seconds.size(); ++replica) {
    const double needed = data_seconds[replica] / std::max(1e-12, step_seconds[replica]);
    if (needed <= even) continue;
    const double own = static_cast<double>(share(replica)) * step_seconds[replica];
    slowest = std::max(slowest, own + part * incoming_seconds[replica] * (1 - even / needed));
  }
  return slowest;
}

double LocalRounds::seconds_an_exchange() const {
  double most = 0;
  for (size_t replica = 0; replica < data_seconds.size(); ++replica)
    most = std::max(most, static_cast<double>(share(replica)) * data_seconds[replica]);
  return part * agreement + most;
}

double LocalRounds::seconds_a_step() const {
  double steps = 0;
  for (size_t replica = 0; replica < step_seconds.size(); ++replica)
    steps += static_cast<double>(share(replica));
  // Those that overlap take as long as what takes longer; the last one of so many is waited for.
  const double round = seconds_a_round();
  const auto rounds = static_cast<double>(settle_every);
  const double hidden = (rounds - 1) * std::max(seconds_a_busy_round(), seconds_an_exchange());
  return (hidden + round + agreement) / (rounds * steps);
}

std::vector<uint64_t> shares_by_speed(const std::vector<double>& step_seconds, uint64_t every,
                                      uint64_t ratio_max) {
  const double fastest = *std::min_element(step_seconds.begin(), step_seconds.end());
  const uint64_t least = (every + ratio_max - 1) / ratio_max;
  std::vector<uint64_t> shares;
  for (const double step : step_seconds) {
    const double pace = std::min(1.0, fastest / std::max(1e-12, step));
    shares.push_back(std::max(least, static_cast<uint64_t>(pace * static_cast<double>(every) + 1e-6)));
  }
  return shares;
}

std::vector<size_t> fastest_to_largest(const std::vector<double>& step_seconds,
                                       const std::vector<uint64_t>& shares) {
  std::vector<size_t> by_share(shares.size()), by_speed(shares.size()), which(shares.size());
  std::iota(by_share.begin(), by_share.end(), 0);
  std::iota(by_speed.begin(), by_speed.end(), 0);
  std::ranges::stable_sort(by_share, [&](size_t a, size_t b) { return shares[a] > shares[b]; });
  std::ranges::stable_sort(by_speed, [&](size_t a, size_t b) { return step_seconds[a] < step_seconds[b]; });
  for (size_t rank = 0; rank < shares.size(); ++rank) which[by_share[rank]] = by_speed[rank];
  return which;
}

std::vector<uint64_t> round_lengths(uint64_t least, uint64_t most) {
  std::vector<uint64_t> lengths;
  for (uint64_t length = least; length < most; length += std::max<uint64_t>(1, length / 4))
    lengths.push_back(length);
  lengths.push_back(most);
  return lengths;
}

}  // namespace weft::plan
