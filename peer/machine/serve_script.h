// The script of a served model's stage, beside the one that trains: which passes have come from the stage
// before it in the ring, and which task comes next. At the entry, stage 0, it also knows the requests
// (serve_requests.h). It holds no tensor. Pure.
//
// A pass has come when all edges have it: pieces on edge 0, a value that passes between two parts on each
// other one. What these values are whoever makes the runner finds out; no tensor comes before, for the broker
// lets requests through once all stages are ready. Passes are computed in the order in which they were sent,
// which is not always that in which they come: a pass says how many numbers it is behind the one before it
// (TensorHeader::microbatch), for a number that the entry gave up is never sent.
//
// A stage of the next plan may take over what this one has (parking.cc): the entry then goes on with the
// first request that it is asked for, known or not, for then all stages are ready.
//
// Bounds: passes that have begun to come are at most those that may be under way, and one; beside them as
// many of history as all positions have. What the entry has under way comes round within
// Options::round_deadline.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "dag/incremental/incremental.h"
#include "peer/machine/serve_requests.h"
#include "peer/machine/task.h"
#include "proto/messages.h"

namespace weft::peer {

inline constexpr int64_t kServePiecesMax = 65536;  // of a pass
// Passes below this number are what a stage that is new is given of earlier ones (serve/pass.h).
inline constexpr uint64_t kServeHistoryPasses = uint64_t{1} << 20;

// Whether a tensor of a pass is what its edge has: `edges` by number (serve/pass.h). Errors: InvalidArgument.
Status check_serve_tensor(const proto::TensorHeader& header, const proto::ServeProgram& serve,
                          const std::vector<dag::RowSpec>& edges);

class ServeScript {
 public:
  struct Options {
    uint32_t tasks_ahead = 1;  // handed out and not done
    // Twice what a device may take that does something for the first time (device_watch.h).
    Duration round_deadline = std::chrono::minutes(20);
  };
  // REQUIRES: the assignment serves, and check() has nothing against it.
  ServeScript(std::shared_ptr<const proto::AssignStage> assignment, const Options& options);
  // Whether the stage has its place in a ring. Errors: InvalidArgument.
  static Status check(const proto::AssignStage& assignment);
  // In the ring: of a stage that is alone, itself.
  static plan::Seat before(const proto::AssignStage& assignment);
  static plan::Seat behind(const proto::AssignStage& assignment);

  // The runner is there: what comes on each edge.
  void on_runner_made(std::vector<dag::RowSpec> edges) { edges_ = std::move(edges); }
  // Errors: InvalidArgument for what a neighbour that keeps the protocol does not send.
  Status on_tensor(const plan::Seat& from, const proto::TensorHeader& header);
  // Whether they are for the runner. Errors: InvalidArgument where this is not the entry.
  Result<bool> on_request(Instant now, const proto::ServeRequest& request);
  Result<bool> on_cancel(const proto::CancelRequest& cancel);
  // From the stage before it on this peer; REQUIRES: nothing has come yet.
  void take_over(std::optional<ServeRequests> requests);
  std::optional<ServeRequests> take_requests() { return std::exchange(requests_, std::nullopt); }
  // Those that nobody wants any more are for the runner to cancel.
  std::vector<uint64_t> take_unwanted(Instant now);
  // What a task made that the stage before was given.
  void on_earlier_task(Instant now, const TaskOutcome& outcome);
  // Errors: Timeout, what is under way has not come round for too long.
  Status on_tick(Instant now);
  void on_resumed();
  // In the order in which they were handed out.
  void on_task_done(Instant now, const Task& task, const TaskOutcome& outcome);

  std::optional<Task> next_task();
  std::vector<proto::ServeProgress> take_progress();

  bool is_idle() const { return tasks_.empty() && whole_.empty() && !begins_; }
  const ServeRequests* requests() const { return requests_ ? &*requests_ : nullptr; }  // of the entry

 private:
  struct PartialPass {
    uint32_t behind = 0;  // numbers behind the pass before it
    std::set<uint32_t> edges{};
  };
  Status check_number(const proto::TensorHeader& header) const;
  Status check_room(const proto::TensorHeader& header) const;
  void line_up();

  std::shared_ptr<const proto::AssignStage> assignment_;
  Options options_;
  std::optional<ServeRequests> requests_;
  std::optional<std::vector<dag::RowSpec>> edges_;
  std::map<uint64_t, PartialPass> partial_;  // by pass
  std::deque<uint64_t> whole_;               // passes that were not handed out
  uint64_t last_ = 0;                        // pass that was lined up
  bool begins_ = false;                      // there may be something to begin
  bool goes_on_ = false;                     // and there is, once a request comes
  std::deque<Task> tasks_;                   // handed out and not done
  std::optional<Instant> round_since_;       // since when what is under way has not come round
};

}  // namespace weft::peer
