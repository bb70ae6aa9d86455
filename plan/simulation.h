// A few steps of a pipeline played through, task by task and message by message (plan/predict.h).
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "plan/critical_path.h"
#include "plan/event_queue.h"
#include "plan/predict.h"

namespace weft::plan {

inline constexpr uint32_t kStepsSimulated = 3;

// What a message takes on its way, and the data of a stage.
struct PathTimes {
  int64_t uplink = 0, path = 0, downlink = 0, latency = 0;  // ns
  uint32_t pair = 0;                                        // by ends
};
// Those of the pipeline's messages, then those of the data of each stage.
std::vector<PathTimes> path_times(const PredictRequest& request);

// What was asked for and the paths outlive it.
class Simulation {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  Simulation(const PredictRequest& request, const std::vector<PathTimes>& paths, uint32_t microbatches);

  // When the last stage has updated for the last time, in ns; nothing as soon as that is sure to be at
  // `give_up_at` or later.
  std::optional<int64_t> run(int64_t give_up_at = kNever);

  // REQUIRES: the step alone was not all that was asked for, and this ran.
  PlayedOrder order();
  Timeline timeline();
  // REQUIRES: it was recorded, and this ran. All simulated steps.
  std::vector<CriticalPart> path() const { return recorder_.path_to(last_.mark); }

 private:
  using Mark = PathRecorder::Mark;

  struct Stage {
    std::vector<uint32_t> done;                // by segment, in this step
    std::vector<std::vector<uint32_t>> sends;  // by segment: messages
    std::vector<uint32_t> expected;            // messages, by segment
    size_t first_slot = 0;
    bool takes_at_once = false;  // its downlink holds nothing up
    uint32_t step = 0;
    bool busy = false;
    int64_t busy_until = 0;     // where that is known, while it is busy
    uint64_t data_asked = 0;    // microbatches, over all steps
    End uplink, downlink;       // free from then on
    End task;                   // the one before, or the update
    std::deque<Event> waiting;  // with a fixed order: what came across before its turn
    std::vector<TaskChoice> order;
    std::vector<uint32_t> arrivals;
    std::vector<TimelineTask> timeline;
    std::vector<HeldMicrobatches> held;
  };

  size_t slot(uint32_t stage, uint32_t step, uint32_t segment, uint32_t microbatch) const {
    return stages_[stage].first_slot +
           (size_t{step} * pipeline_.stages[stage].segments.size() + segment) * microbatches_ + microbatch;
  }
  bool reads_data(uint32_t stage) const { return pipeline_.stages[stage].data.value > 0; }
  End after(End begin, int64_t takes, CriticalPart what);

  void count_work(int64_t give_up_at);
  void spend(std::vector<int64_t>& left, size_t of, int64_t begin, int64_t takes);

  void play_next();
  void take(const Event& event);
  void finish_task(const Event& event);
  void send(uint32_t message, const Event& task);
  void ask_for_data(uint32_t stage);
  void take_in(Event event, End came);
  void take_in_order(const Event& event);
  void arrive_at(int64_t time, Event event);
  void arrive(const Event& event);

  void advance(uint32_t stage);
  void begin_task(uint32_t stage, const TaskChoice& task);
  End let_begin(uint32_t stage, const TaskChoice& task) const;
  void hold(Stage& stage, int more);
  void update(uint32_t stage);
  std::optional<TaskChoice> choose(uint32_t stage) const;

  const PredictRequest& request_;
  bool records_;  // order and timeline
  const std::vector<PathTimes>& paths_;
  const Pipeline& pipeline_;
  uint32_t microbatches_;
  uint32_t count_;
  std::vector<Stage> stages_;
  std::vector<End> pairs_;  // by ends: what lies between is free from then on
  // By step, segment and microbatch of a stage: how many messages have arrived, and the last of them.
  std::vector<uint32_t> arrived_;
  std::vector<Mark> arrived_mark_;
  uint32_t ready_to_update_ = 0;
  EventQueue events_;
  std::vector<uint32_t> touched_;  // stages that something happened to now
  PathRecorder recorder_;
  End last_;  // update
  int64_t now_ = 0;
  int64_t give_up_at_ = kNever;
  bool is_late_ = false;
  std::vector<int64_t> work_left_, uplink_left_, downlink_left_, pair_left_;  // ns
};

}  // namespace weft::plan
