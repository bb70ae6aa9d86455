// The further connections of a link's session, by an index from 1: being dialled, connected and not yet
// introduced, or up. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/units.h"

namespace weft::peer {

// A connection that a link goes over.
struct LinkChannel {
  uint64_t number = 0;
  bool relayed = false;
  Instant heard{};  // when bytes came last
};

class LinkStreams {
 public:
  void dial(uint32_t index) { streams_[index] = {}; }
  // Whether it is being dialled.
  bool awaits(uint32_t index) const;
  bool contains(uint32_t index) const { return streams_.contains(index); }
  void give_up(uint32_t index) { streams_.erase(index); }
  // REQUIRES: awaits(index).
  void connect(uint32_t index, uint64_t connection, Instant now);
  // The other side dialled it: it is up.
  void accept(uint32_t index, uint64_t connection, Instant now);

  LinkChannel* find(uint64_t connection);  // nullptr: it is none of them
  bool is_up(uint64_t connection) const;
  // It has introduced itself. REQUIRES: it is one of them.
  void set_up(uint64_t connection);
  void drop(uint64_t connection);
  void clear() { streams_.clear(); }

  std::vector<uint64_t> connections() const;  // all, in the order of their indices
  std::vector<uint64_t> up() const;

 private:
  struct Stream {
    std::optional<LinkChannel> channel{};  // none: it is being dialled
    bool is_up = false;
  };
  std::map<uint32_t, Stream> streams_;
};

// Whatever breaks connections soon after there are several: then there is one, for the rest of the run.
class SessionBreaks {
 public:
  void ended(bool had_further, Duration lasted) {
    in_a_row_ = had_further && lasted < std::chrono::minutes(1) ? in_a_row_ + 1 : 0;
  }
  bool are_too_many() const { return in_a_row_ >= 3; }

 private:
  uint32_t in_a_row_ = 0;
};

}  // namespace weft::peer
