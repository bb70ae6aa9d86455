#include "sim/peer_line.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace weft::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

using Direction = Network::Direction;

void PeerLine::begin() {
  end_connection();
  for (auto& [to, queue] : given_) end(queue);
}

void PeerLine::give_up_uploads() { give_up_waiting(rated_.up); }

void PeerLine::end_connection() {
  for (Queue* queue : {&plain_.up, &plain_.down, &rated_.up, &rated_.down}) end(*queue);
}

// What is on its way comes to nobody who is there.
void PeerLine::end(Queue& queue) {
  ++queue.life;
  queue.is_busy = false;
  give_up_waiting(queue);
}

void PeerLine::give_up_waiting(Queue& queue) {
  for (Transfer& transfer : std::exchange(queue.waiting, {}))
    world_.after(Duration{}, [done = std::move(transfer.done)] {
      done(fail(ErrorCode::Unavailable, "the connection ended"));
    });
}

void PeerLine::enter(Queue& queue, Direction direction, Transfer transfer) {
  queue.waiting.push_back(std::move(transfer));
  if (!std::exchange(queue.is_busy, true)) begin_first(queue, direction);
}

void PeerLine::begin_first(Queue& queue, Direction direction) {
  Transfer transfer = std::move(queue.waiting.front());
  queue.waiting.pop_front();
  network_.transfer(
      node_, direction, transfer.bytes,
      [this, &queue, direction, life = queue.life, done = std::move(transfer.done)] {
        if (life == queue.life) {
          queue.is_busy = !queue.waiting.empty();
          if (queue.is_busy) begin_first(queue, direction);
        }
        done({});
      },
      transfer.speed);
}

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

void PeerLine::request(int64_t bytes, const Rates& rates, std::function<Answer()> serve, Done done) {
  const Done answer = once(std::move(done));
  if (breaks(answer)) return;
  // What was on its way to a broker that has died went with the connection.
  const uint64_t broker_life = broker_.life();
  if (std::exchange(served_by_, broker_life) != broker_life) end_connection();
  enter(way_of(rates.request).up, Direction::Out,
        {.bytes = bytes,
         .speed = speed(node_, 0, rates.request),
         .done = [this, rate = rates.answer, broker_life, serve = std::move(serve),
                  answer](const Status& sent) {
           if (!sent) return answer(sent);
           world_.after(network_.latency(node_, 0), [this, rate, broker_life, serve, answer] {
             arrive(rate, broker_life, serve, answer);
           });
         }});
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
  enter(way_of(rate).down, Direction::In,
        {.bytes = result.bytes,
         .speed = speed(0, node_, rate),
         .done = [this, answer, status = result.status](const Status& come) {
           if (!come) return answer(come);
           world_.after(network_.latency(node_, 0), [answer, status] { answer(status); });
         }});
}

void PeerLine::give(NodeId to, int64_t bytes, uint64_t rate, std::function<void()> arrived) {
  enter(given_[{to, rate != 0}], Direction::Out,
        {.bytes = bytes,
         .speed = speed(node_, to, rate),
         .done = [this, to, bytes, arrived = std::move(arrived)](const Status& sent) {
           if (!sent) return arrived();  // which sees that this life of the process is over
           network_.transfer(to, Direction::In, bytes,
                             [this, to, arrived] { world_.after(network_.latency(node_, to), arrived); });
         }});
}

}  // namespace weft::sim
