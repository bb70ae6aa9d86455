// What peers say to each other over a link, and over a connection that measures one.
#pragma once

#include <cstdint>

#include "plan/seat.h"
#include "proto/hello.h"

namespace weft::proto {

// A link outlives its connections: each side counts the tensors that it has received over it, keeps what it
// sent until that is acknowledged, and sends the rest again over the next connection.
struct LinkHello {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  plan::Seat seat{};      // the sender's
  uint64_t received = 0;  // tensors, over all connections of this link: all numbers below it
  // Tensors may come in pieces, over so many connections; 0, as peers before minor version 5 say: whole, over
  // this one.
  uint32_t streams = 0;
  uint32_t stream = 0;   // which of them this is; of all but the first:
  uint64_t session = 0;  // as the first one's LinkReady named it
};
struct LinkReady {  // the answer; tensors may come
  uint64_t received = 0;
  uint32_t streams = 0;  // as in LinkHello: both sides keep to the smaller
  uint64_t session = 0;  // drawn at random; what belongs to another one is refused
};
struct LinkAck {  // now and then, and when nothing else goes, as a sign of life
  uint64_t received = 0;
};

// The first message over a connection that measures: from the side that dials, then from the other.
struct ProbeHello {
  uint64_t round = 0;
};
enum class ProbeWord : uint8_t {
  Ping = 0,  // answer at once, with the same number
  Pong = 1,
  Ask = 2,   // send probe frames until they are `number` bytes in all
  Turn = 3,  // I have measured: now you, or done
};
struct ProbeSay {
  ProbeWord word = ProbeWord::Ping;
  uint64_t number = 0;
};

}  // namespace weft::proto
