#include "plan/ring.h"

#include <algorithm>

#include "plan/traffic.h"

namespace weft::plan {
namespace {

constexpr double kApart = 0.5;      // of the row's work lies between ends that belong together
constexpr double kNear = 1.0 / 16;  // so much of it may the tail take in, to begin where less crosses
constexpr double kWorth = 0.8;      // of the bytes there are what is left without the tied ones, at most

class RingFinder {
 public:
  explicit RingFinder(const Model& model)
      : model_(model), traffic_(model), work_before_(model.positions + 1, 0) {
    const std::vector<double> work = seconds_of_positions(model, 0, Rates{}, /*accumulates=*/false);
    for (uint32_t p = 0; p < model.positions; ++p) work_before_[p + 1] = work_before_[p] + work[p];
  }

  std::optional<Ring> run() {
    const Ends ends = widest_tie();
    if (ends.tail_begin <= ends.head_end) return std::nullopt;
    Ring ring = make_ring(ends);
    const uint32_t tail = ring.tails.front();
    if (static_cast<double>(ring.crossing.over(tail)) >
        kWorth * static_cast<double>(model_.crossing.over(tail)))
      return std::nullopt;
    return ring;
  }
  std::optional<Ring> run(std::span<const PinnedRange> pinned) {
    Ends ends = widest_gap(pinned);
    if (ends.tail_begin <= ends.head_end) return std::nullopt;
    if (const auto& own = model_.ring) {
      const Ends both{std::max(ends.head_end, own->head_end), std::min(ends.tail_begin, own->tail_max)};
      if (both.tail_begin > both.head_end) ends = both;
    }
    return make_ring(ends);
  }

 private:
  double work(uint32_t begin, uint32_t end) const { return work_before_[end] - work_before_[begin]; }

  Ring make_ring(const Ends& ends) const {
    Ring ring{.head_end = ends.head_end,
              .tail_max = ends.tail_begin,
              .tails = {},
              .crossing = make_crossing(traffic_, model_.positions, ends),
              .waiting = waiting(ends)};
    ring.tails = {cheapest_tail(ring)};
    if (ring.tails.front() != ring.tail_max) ring.tails.push_back(ring.tail_max);
    return ring;
  }

  // The most work between two neighbours of what is pinned to one device.
  Ends widest_gap(std::span<const PinnedRange> pinned) const {
    Ends ends;
    double most = 0;
    for (const PinnedRange& before : pinned) {
      uint32_t next = model_.positions;
      for (const PinnedRange& other : pinned)
        if (other.device == before.device && other.first > before.last) next = std::min(next, other.first);
      if (next == model_.positions || work(before.last + 1, next) <= most) continue;
      most = work(before.last + 1, next);
      ends = {before.last + 1, next};
    }
    return ends;
  }
  // Of all values the one with the most bytes times work between two neighbours of those who make and read
  // it.
  Ends widest_tie() const {
    Ends ends;
    double most = 0;
    traffic_.for_each_value([&](uint32_t from, const std::vector<uint32_t>& readers, int64_t bytes) {
      const auto look = [&](uint32_t low, uint32_t high) {
        if (high <= low + 1 || work(low + 1, high) < kApart * work_before_.back()) return;
        const double worth = static_cast<double>(bytes) * work(low + 1, high);
        if (worth <= most) return;
        most = worth;
        ends = {low + 1, high};
      };
      look(from, readers.front());
      look(readers.back(), from);
      for (size_t i = 1; i < readers.size(); ++i) look(readers[i - 1], readers[i]);
    });
    return ends;
  }
  int64_t waiting(const Ends& ends) const {
    int64_t sum = 0;
    traffic_.for_each_value([&](uint32_t from, const std::vector<uint32_t>& readers, int64_t bytes) {
      if (from >= ends.tail_begin && readers.front() < ends.head_end) sum += bytes;
    });
    return sum;
  }
  uint32_t cheapest_tail(const Ring& ring) const {
    uint32_t best = ring.tail_max;
    for (uint32_t tail = best;
         tail > ring.head_end && work(tail, ring.tail_max) <= kNear * work_before_.back(); --tail)
      if (ring.crossing.over(tail) < ring.crossing.over(best)) best = tail;
    return best;
  }

  const Model& model_;
  Traffic traffic_;
  std::vector<double> work_before_;
};

}  // namespace

std::optional<Ring> find_ring(const Model& model) { return RingFinder(model).run(); }
std::optional<Ring> find_ring(const Model& model, std::span<const PinnedRange> pinned) {
  return RingFinder(model).run(pinned);
}

}  // namespace weft::plan
