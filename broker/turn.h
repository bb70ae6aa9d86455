// The rule by which the broker's core is driven, by its thread and by the simulator alike: events are
// stepped, what they wrote is made durable all at once, and only then is carried out what they want, in
// order. So nobody hears of anything that a crash could undo. Pure.
//
//   turn.add(broker.step(now, event)) ...; while (!turn.is_durable()) turn.on_appended(store.append(
//   turn.records())); for (effect : turn.finish().effects) ...
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "broker/events.h"

namespace weft::broker {

inline constexpr Duration kDiskFullRetry = std::chrono::milliseconds(500);

class Turn {
 public:
  // What an event led to. REQUIRES: the disk is not waited for.
  void add(Effects effects) {
    WEFT_CHECK(!waits_);
    is_durable_ = is_durable_ && effects.records.empty();
    std::move(effects.records.begin(), effects.records.end(), std::back_inserter(turn_.records));
    std::move(effects.effects.begin(), effects.effects.end(), std::back_inserter(turn_.effects));
  }

  // To be appended to the store, all or none.
  const std::vector<Record>& records() const { return turn_.records; }
  // Nothing is left to append.
  bool is_durable() const { return is_durable_; }

  enum class Verdict : uint8_t {
    Durable,
    // The disk is full: nothing of the turn is durable, so nobody hears of it. The same records again after
    // kDiskFullRetry; no event is stepped meanwhile. Peers keep their stages and come back.
    Waits,
    Ends,  // the store is broken: the process must end, and a restart begins with what was durable
  };
  // What the store said of records().
  Verdict on_appended(const Status& appended) {
    is_durable_ = appended.has_value();
    waits_ = !appended && appended.error().code == ErrorCode::ResourceExhausted;
    return is_durable_ ? Verdict::Durable : waits_ ? Verdict::Waits : Verdict::Ends;
  }

  // The turn is over: its records, and what is to be carried out, in order. REQUIRES: is_durable().
  Effects finish() {
    WEFT_CHECK(is_durable_);
    return std::exchange(turn_, {});
  }

 private:
  Effects turn_{};
  bool is_durable_ = true, waits_ = false;
};

}  // namespace weft::broker
