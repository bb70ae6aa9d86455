#include "sim/peer_line.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace weft::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

void PeerLine::begin() { free_ = rated_ = {world_.now(), world_.now()}; }

void PeerLine::give_up_uploads() { rated_.up = std::min(rated_.up, world_.now()); }

PeerLine::Done PeerLine::once(Done done) {
  return [guarded = process_.guard(), done = std::move(done),
          open = std::make_shared<bool>(true)](const Status& status) {
    if (std::exchange(*open, false)) guarded([done, status] { done(status); });
  };
}

bool PeerLine::breaks(const Done& answer) {
  if (!fails_ || !draw_.one_in(20)) return false;
  world_.after(draw_.doubling(milliseconds(10), seconds(5)),
               [answer] { answer(fail(ErrorCode::Unavailable, "the connection broke")); });
  return true;
}

int64_t PeerLine::speed(NodeId from, NodeId to, uint64_t rate) const {
  const int64_t path = network_.bytes_per_second(from, to);
  return rate != 0 ? std::min(path, static_cast<int64_t>(rate)) : path;
}

Instant PeerLine::pass(Instant& free, int64_t bytes, int64_t speed) {
  return free = std::max(free, world_.now()) + Duration(bytes * 1'000'000'000 / speed);
}

void PeerLine::request(int64_t bytes, uint64_t rate, std::function<Answer()> serve, Done done) {
  const Done answer = once(std::move(done));
  if (breaks(answer)) return;
  // What was on its way to a broker that has died went with the connection.
  const uint64_t broker_life = broker_.life();
  if (std::exchange(served_by_, broker_life) != broker_life) begin();
  const Instant gone = pass(free_of(rate).up, bytes, speed(node_, 0, rate));
  // The path and this peer's uplink are passed at the same time.
  network_.transfer(
      node_, Network::Direction::Out, bytes,
      [this, gone, rate, broker_life, serve = std::move(serve), answer] {
        world_.at(std::max(gone, world_.now()) + network_.latency(node_, 0),
                  [this, rate, broker_life, serve, answer] { arrive(rate, broker_life, serve, answer); });
      });
}

void PeerLine::give_up(const Done& answer) {
  world_.after(seconds(10), [answer] { answer(fail(ErrorCode::Timeout, "the broker does not answer")); });
}

void PeerLine::arrive(uint64_t rate, uint64_t broker_life, const std::function<Answer()>& serve,
                      const Done& answer) {
  if (network_.blocked(node_, 0)) return give_up(answer);
  if (!broker_.alive() || broker_.life() != broker_life)
    return world_.after(network_.latency(node_, 0),
                        [answer] { answer(fail(ErrorCode::Unavailable, "connection refused")); });
  // The broker's process may die before it answers: then the connection ends.
  const auto served = std::make_shared<bool>(false);
  broker_.serve([this, rate, serve, answer, served] {
    *served = true;
    answer_from_broker(rate, serve(), answer);
  });
  if (*served) return;
  world_.after(seconds(20), [this, served, life = broker_.life(), answer] {
    if (!*served)
      answer(
          fail(life == broker_.life() ? ErrorCode::Timeout : ErrorCode::Unavailable, "the connection ended"));
    *served = true;
  });
}

void PeerLine::answer_from_broker(uint64_t rate, const Answer& result, const Done& answer) {
  if (network_.blocked(0, node_)) return give_up(answer);
  const Instant due =
      pass(free_of(rate).down, result.bytes, speed(0, node_, rate)) + network_.latency(node_, 0);
  network_.transfer(node_, Network::Direction::In, result.bytes, [this, due, answer, status = result.status] {
    world_.at(std::max(due, world_.now()), [answer, status] { answer(status); });
  });
}

void PeerLine::give(NodeId to, int64_t bytes, uint64_t rate, std::function<void()> arrived) {
  const Instant gone = pass(free_of(rate).up, bytes, speed(node_, to, rate));
  network_.transfer(node_, Network::Direction::Out, bytes,
                    [this, to, bytes, gone, arrived = std::move(arrived)] {
                      network_.transfer(to, Network::Direction::In, bytes, [this, to, gone, arrived] {
                        world_.at(std::max(gone, world_.now()) + network_.latency(node_, to), arrived);
                      });
                    });
}

}  // namespace weft::sim
