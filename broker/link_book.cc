#include "broker/link_book.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace weft::broker {
namespace {

constexpr double kAssumedRate = 1.25e6;  // 10 Mbit/s
constexpr Duration kAssumedLatency = std::chrono::milliseconds(100);

}  // namespace

const LinkSample* LinkBook::find(const PeerId& from, const PeerId& to) const {
  const auto found = samples_.find({from, to});
  return found == samples_.end() ? nullptr : &found->second;
}

void LinkBook::record(const LinkSample& sample) {
  if (!std::isfinite(sample.bytes_per_second) || sample.bytes_per_second < 0 || sample.from == sample.to)
    return;
  samples_[{sample.from, sample.to}] = sample;
}

void LinkBook::observe(PeerId from, PeerId to, double bytes_per_second, Instant now) {
  const auto found = samples_.find({from, to});
  if (found == samples_.end() || !std::isfinite(bytes_per_second)) return;
  found->second.at = std::max(found->second.at, now);
  found->second.bytes_per_second = std::max(found->second.bytes_per_second, bytes_per_second);
}

void LinkBook::forget(PeerId peer) {
  std::erase_if(samples_, [&](const auto& s) { return s.first.first == peer || s.first.second == peer; });
}

std::vector<LinkBook::Pair> LinkBook::next_round(std::span<const PeerId> idle, Instant) const {
  std::vector<Pair> round;
  std::vector<bool> taken(idle.size(), false);
  for (size_t a = 0; a < idle.size(); ++a)
    for (size_t b = a + 1; b < idle.size() && !taken[a]; ++b)
      if (!taken[b] && (find(idle[a], idle[b]) == nullptr || find(idle[b], idle[a]) == nullptr)) {
        round.push_back({idle[a], idle[b]});
        taken[a] = taken[b] = true;
      }
  return round;
}

bool LinkBook::wants_more(std::span<const PeerId> peers, Instant now) const {
  return !next_round(peers, now).empty();
}

plan::ClusterView LinkBook::cluster(std::vector<plan::DeviceView> devices, std::span<const PeerId> peers,
                                    Instant) const {
  WEFT_CHECK(devices.size() == peers.size());
  for (uint32_t d = 0; d < devices.size(); ++d) devices[d].site = d;
  plan::ClusterView view(std::move(devices));
  for (uint32_t a = 0; a < peers.size(); ++a)
    for (uint32_t b = 0; b < peers.size(); ++b) {
      const LinkSample* sample = find(peers[a], peers[b]);
      plan::LinkView link{.bytes_per_second = kAssumedRate, .latency = kAssumedLatency, .is_assumed = true};
      if (sample != nullptr)
        link = {.bytes_per_second = std::max(sample->bytes_per_second, 1.0),
                .latency = sample->round_trip / 2};
      view.set_between(a, b, link);
    }
  return view;
}

}  // namespace weft::broker
