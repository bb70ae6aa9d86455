// The rule by which the broker's core is driven, by its thread and by the simulator alike: events are
// stepped, what they wrote is made durable all at once, and only then is carried out what they want, in
// order. So nobody hears of anything that a crash could undo. If the store refuses the records of a turn,
// each event's records are tried by themselves. If a record is still refused, its event has no effects and
// its sender is disconnected. Pure.
//
//   turn.add(event, broker.step(now, event)); ...
//   while (!turn.to_append().empty()) turn.on_appended(store.append(turn.to_append()));
//   for (part : turn.finish().parts) ...
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "broker/events.h"

namespace weft::broker {

inline constexpr Duration kDiskFullRetry = std::chrono::milliseconds(500);

class Turn {
 public:
  // What an event led to. REQUIRES: nothing of the turn was appended or refused yet.
  void add(const Event& event, Effects effects);

  bool is_empty() const { return parts_.empty(); }
  // To be appended to the store next, all or none; nothing: the turn is durable.
  std::span<const Record> to_append() const;

  enum class Verdict : uint8_t {
    Durable,
    // An event's records go by themselves from now on, or, if they did, are left out.
    Refused,
    // The disk is full: nothing of it is durable, so nobody hears of it. The same records again after
    // kDiskFullRetry; no event is stepped meanwhile. Peers keep their stages and come back.
    Waits,
    Ends,  // the store is broken: the process must end, and a restart begins with what was durable
  };
  // What the store said of to_append().
  Verdict on_appended(const Status& appended);

  struct Part {                            // of an event
    std::optional<ConnectionId> sender{};  // whose message it was
    std::span<const Record> records{};     // of Done
    std::vector<Effect> effects{};         // to be carried out, in order
    bool is_refused = false;               // instead, the sender has to go
  };
  struct Done {
    std::vector<Record> records{};
    std::vector<Part> parts{};  // in order
  };
  // The turn is over; the next one begins. REQUIRES: to_append() is empty.
  Done finish();

 private:
  struct Stepped {
    std::optional<ConnectionId> sender{};
    size_t record_count = 0;
    std::vector<Effect> effects{};
    bool is_refused = false;
  };
  void skip_to_records();

  std::vector<Record> records_{};
  std::vector<Stepped> parts_{};
  size_t durable_ = 0;  // of records_, or left out
  bool one_by_one_ = false;
  size_t next_ = 0;  // of parts_, where they go one by one
};

}  // namespace weft::broker
