// Whether the device still answers: what it was given, in order, and for how long it has been at the first of
// that. Pure: time is handed in.
//
// Counted is time in which this process ran. Whoever was stopped, or slept with its machine, comes back to a
// clock that has jumped, and the device could not have been heard meanwhile: between two looks no more than
// kAwakeMax is counted, and they are never further apart while something runs (next_look).
//
// A device is overdue that takes kTimes as long as the same work took in this stage on the average, and at
// least kFloor, for whose machine it is may use it too. Before that work has been done once nobody knows what
// it takes, and the first time takes longest (kernels are made, memory is touched): then it has kFirst, or
// kTimes what the plan predicts where that is more.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "base/result.h"
#include "base/units.h"
#include "peer/machine/stage.h"

namespace weft::peer {

class DeviceWatch {
 public:
  static constexpr int64_t kTimes = 20;
  static constexpr Duration kFloor = std::chrono::seconds(30);
  static constexpr Duration kFirst = std::chrono::minutes(10);
  static constexpr Duration kAwakeMax = std::chrono::seconds(1);

  // What takes about as long each time: a task, but for its step and microbatch; nothing: making the runner.
  struct Work {
    TaskKind kind = TaskKind::Segment;
    proto::ProgramKind program = proto::ProgramKind::Train;
    uint32_t segment = 0;
    auto operator<=>(const Work&) const = default;
  };
  static std::optional<Work> work_of(const Task& task) {
    return Work{task.kind, task.key.program, task.segment};
  }

  // Before anything else that happens at that time.
  void look(Instant now);
  // The device was given a stage's work, behind what it has; it is done with the first of the stage's.
  void begin(uint64_t stage, std::optional<Work> work, Duration predicted = {});
  void end(uint64_t stage);
  // A stage goes, or has failed: of what the device was given for it only what it is at now is still done,
  // and not told; another stage's work is other work. True: the device is to be asked when it is done with
  // that.
  bool drop(uint64_t stage);
  void answered();  // it is

  // In words, DeviceLost; nothing: it is not overdue.
  std::optional<Error> overdue() const;
  std::optional<Instant> next_look() const;  // at the latest
  // Time counted so far: for deadlines that shall not pass while nobody could act.
  Duration awake() const { return awake_; }

 private:
  struct Given {
    uint64_t stage = 0;
    std::optional<Work> work;
    Duration predicted{};
    bool is_dropped = false;
  };
  struct Measured {
    int64_t times = 0;
    Duration sum{};
  };
  std::optional<Duration> usual(const Given& given) const;
  Duration limit(const Given& given) const;

  std::optional<Instant> looked_at_;
  Duration awake_{}, began_{};  // began_: the first of given_, in awake time
  std::deque<Given> given_;
  std::map<uint64_t, std::map<std::optional<Work>, Measured>> measured_;  // by stage
};

}  // namespace weft::peer
