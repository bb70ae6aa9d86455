// What happens when, while a step is played through (plan/simulation.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "plan/critical_path.h"

namespace weft::plan {

// When something ended, and what.
struct End {
  int64_t time = 0;  // ns
  PathRecorder::Mark mark = PathRecorder::kBegin;
};
inline End later(End a, End b) { return b.time > a.time ? b : a; }

struct Event {
  enum class Kind : uint8_t { TaskDone, Updated, CameAcross, Arrived } kind = Kind::TaskDone;
  uint32_t stage = 0, segment = 0, microbatch = 0, step = 0;
  uint32_t message = 0;                            // of the pipeline's; beyond them, the data of a stage
  PathRecorder::Mark mark = PathRecorder::kBegin;  // what ended then
  End begun{};  // CameAcross: when its first byte came, if nothing held it up
};

// Events by their time, those of one time in the order in which they were added. What is moved about is
// small.
class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  int64_t next_time() const { return heap_.front().time; }
  bool has_at(int64_t time) const { return !empty() && next_time() == time; }
  void add(int64_t time, const Event& event) {
    uint32_t place = static_cast<uint32_t>(events_.size());
    if (free_.empty()) {
      events_.push_back(event);
    } else {
      place = free_.back();
      free_.pop_back();
      events_[place] = event;
    }
    heap_.push_back({time, next_number_++, place});
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  Event take() {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const uint32_t place = heap_.back().place;
    heap_.pop_back();
    free_.push_back(place);
    return events_[place];
  }

 private:
  struct Entry {
    int64_t time = 0;  // ns
    uint32_t number = 0, place = 0;
    bool operator>(const Entry& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };
  std::vector<Entry> heap_;
  std::vector<Event> events_;  // by place
  std::vector<uint32_t> free_;
  uint32_t next_number_ = 0;
};

}  // namespace weft::plan
