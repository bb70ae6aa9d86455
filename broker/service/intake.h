// How much of each connection is in work at once: who is read from, whose large frames may come, who waits.
// A connection may keep to what one may do, and all of them together be too much. Pure.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "broker/service/arrivals.h"

namespace weft::broker {

class Intake {
 public:
  explicit Intake(const Arrivals::Options& arrivals) : arrivals_(arrivals) {}

  void begin(ConnectionId connection);
  // A user may ask for much in a few bytes: one thing at a time.
  void is_of_user(ConnectionId connection);
  void end(ConnectionId connection);

  // Bytes of messages given to the core, and of those, what it has taken.
  void give_to_core(ConnectionId connection, size_t size);
  void taken(ConnectionId connection, uint64_t size);
  bool is_with_core(ConnectionId connection) const;
  // Bytes of chunks and requests that the disk works at; it goes on for a connection that has ended.
  void begin_work(ConnectionId connection, size_t size);
  void end_work(ConnectionId connection, size_t size);

  // A frame has begun to come; a large one waits for its turn (arrivals.h). False: it is not large.
  bool begin_frame(ConnectionId connection, size_t size, bool is_urgent);
  bool end_frame(ConnectionId connection);  // it has come; whether it was large
  // Whose large frames wait no longer, for there is room now.
  std::vector<ConnectionId> let_in(Instant now);
  std::vector<ConnectionId> late(Instant now) const { return arrivals_.late(now); }

  // Whether nothing is to be read from it from now on, where that changes. `unread`: memory that what it has
  // not taken holds here.
  std::optional<bool> pace(ConnectionId connection, size_t unread);
  std::vector<ConnectionId> paused() const;
  // Paused, and not because it does not read itself: it is there, though nothing is heard of it.
  bool is_held_up(ConnectionId connection) const;

 private:
  struct Share {
    size_t in_core = 0, in_work = 0, unread = 0;
    bool is_user = false, is_paused = false, waits_for_its_reader = false;
  };
  const Share* find(ConnectionId connection) const;
  // More than a part of what it may have, one or half.
  bool is_above(ConnectionId connection, const Share& share, size_t part) const;

  std::map<ConnectionId, Share> shares_;
  size_t in_core_ = 0, in_work_ = 0, unread_ = 0;  // of all
  Arrivals arrivals_;
};

}  // namespace weft::broker
