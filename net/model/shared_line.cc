#include "net/model/shared_line.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "net/model/link_model.h"

namespace weft::net {

namespace {
// One flow's turn: a segment, or as much as goes in this time on a fast line.
constexpr double kTurnSeconds = 250e-6;
constexpr double kPieceMax = 64 << 10;
}  // namespace

SharedLine::SharedLine(double bytes_per_second) : clock_(bytes_per_second) { set_rate(bytes_per_second); }

void SharedLine::set_rate(double bytes_per_second) {
  clock_.set_rate(bytes_per_second);
  WEFT_CHECK(clock_.is_limited());
  piece_max_ =
      static_cast<size_t>(std::clamp(bytes_per_second * kTurnSeconds, double{kSegmentSize}, kPieceMax));
}

SharedLine::Flow SharedLine::add() {
  queues_.emplace(next_flow_, Queue{});
  return next_flow_++;
}

void SharedLine::remove(Flow flow) { queues_.erase(flow); }

void SharedLine::enter(Flow flow, size_t size, Instant at) {
  auto& waiting = queues_.at(flow).waiting;
  if (size == 0) return;
  if (!waiting.empty() && waiting.back().at >= at)
    waiting.back().size += size;
  else
    waiting.push_back({size, at});
}

std::vector<SharedLine::Passed> SharedLine::take(Flow flow, Instant now) {
  advance(now);
  return std::exchange(queues_.at(flow).passed, {});
}

void SharedLine::advance(Instant now) {
  for (;;) {
    Instant begin = Instant::max();
    for (const auto& [flow, queue] : queues_)
      if (!queue.waiting.empty()) begin = std::min(begin, queue.waiting.front().at);
    begin = std::max(begin, clock_.free());
    if (begin > now) return;
    serve(*choose(begin), begin);
  }
}

// Who has been served least of those that wait.
SharedLine::Queue* SharedLine::choose(Instant begin) {
  Queue* chosen = nullptr;
  for (auto& [flow, queue] : queues_) {
    if (queue.waiting.empty() || queue.waiting.front().at > begin) continue;
    queue.start = start_of(queue);
    if (!chosen || *queue.start < *chosen->start) chosen = &queue;
  }
  return chosen;
}

void SharedLine::serve(Queue& queue, Instant begin) {
  const size_t size = piece_of(queue);
  served_ = *queue.start;
  queue.end = served_ + size;
  queue.start.reset();
  queue.passed.push_back({size, clock_.pass(size, begin)});
  Waiting& front = queue.waiting.front();
  front.size -= size;
  if (front.size == 0) queue.waiting.pop_front();
}

std::optional<Instant> SharedLine::next(Flow flow) const {
  const Queue& own = queues_.at(flow);
  if (!own.passed.empty()) return own.passed.front().at;
  if (own.waiting.empty()) return std::nullopt;
  const Instant begin = std::max(clock_.free(), own.waiting.front().at);
  size_t before = piece_of(own);
  for (const auto& [other, queue] : queues_)
    if (other != flow && !queue.waiting.empty() && queue.waiting.front().at <= begin &&
        start_of(queue) <= start_of(own))
      before += piece_of(queue);
  return begin + clock_.time_of(before);
}

}  // namespace weft::net
