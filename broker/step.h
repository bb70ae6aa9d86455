// What one step of the broker has at hand: the time, what comes of it, and what has to be looked at again
// before it ends. The rooms of the broker (pool, job book, runs, stand-bys, links) share one; none of them
// calls another that is not below it.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "broker/events.h"
#include "broker/figures.h"

namespace weft::broker {

struct Counters {
  uint64_t stale_dropped = 0;    // messages of a plan that is no more, or of a stage that has not resumed
  uint64_t repeats_dropped = 0;  // reports that a stage which came back made before
  uint64_t protocol_errors = 0;  // connections closed for them
  uint64_t evicted = 0;          // leases that ran out
  uint64_t substitutions = 0;    // recoveries in which only peers changed
};

class Step {
 public:
  void begin(Now at) { now = at; }
  Effects end() { return std::exchange(effects_, {}); }

  // Durable before any effect of this step is carried out.
  void record(Record record) { effects_.records.push_back(std::move(record)); }
  void effect(Effect effect) { effects_.effects.push_back(std::move(effect)); }
  // `bytes`: of the message, where they are at hand.
  void send(ConnectionId connection, proto::Message message, proto::EncodedBytes bytes = {}) {
    effect(Send{connection, std::make_shared<const proto::Message>(std::move(message)), std::move(bytes)});
  }
  // And closes the connection.
  void refuse(ConnectionId connection, ErrorCode code, std::string message, bool retry = false) {
    send(connection, proto::Refusal{.code = code, .message = std::move(message), .retry = retry});
    effect(Close{connection});
  }
  void log(std::string line) { effect(Log{std::move(line)}); }

  Now now{};
  Counters counters{};
  Figures figures{};
  DiskState disk{};  // as it was looked at last
  // To be looked at before the step ends.
  bool peers = true;       // the list that clients see
  bool stand_bys = false;  // who holds what for whom
  bool transient = false;  // which blobs that need not survive the broker are spoken of
  bool probes = false;     // other peers are idle, or other links are wanted
  bool jobs = false;       // some may be planned that could not
  bool served = true;      // what is served, and where requests for it go

 private:
  Effects effects_;
};

}  // namespace weft::broker
