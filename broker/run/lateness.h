// Which replica holds the others of its round up. Replicas that make local steps wait for each other where
// they agree, and before that where one is further behind than steps are granted ahead. A machine that has
// become slow, or stands still, costs all of them its time then. It is late once the others have waited for
// it longer than a round takes, and would have to do so once more. Pure: time is handed in.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "broker/run/absence.h"
#include "broker/run/inner_steps.h"
#include "broker/run/planned_run.h"
#include "broker/run/run_steps.h"

namespace weft::broker {

struct LateReplica {
  uint32_t replica = 0;
  Duration waited{};  // by the others
  Duration usual{};   // what a round takes
};

class Lateness {
 public:
  explicit Lateness(const PlannedRun& plan);

  // Where the replicas are. To be called often: what lies between two calls counts for a second at most.
  void look(Instant now, const Steps& steps, const Absence& absence);
  // As of the last look.
  std::optional<LateReplica> late() const;
  // Nobody is late in this round any more.
  void pardon() { is_pardoned_ = true; }

 private:
  struct Round {
    uint64_t after = 0, end = 0;  // inner steps: when all had the same weights, and will have them
    uint64_t border = 0;          // with which the round under way ends
    Instant since{};
    std::vector<Duration> waited{};  // for each replica
    std::vector<Duration> idle{};    // since it made its last step
    std::vector<uint64_t> made{};    // inner steps since then, by each
  };
  void follow(Instant now, const Steps& steps);
  std::vector<uint64_t> made_by_each(const Steps& steps) const;
  double usual_seconds() const;

  InnerSteps inner_;
  std::vector<uint32_t> replica_of_;  // by stage
  double predicted_step_;             // seconds, of an inner step
  std::deque<double> step_seconds_;   // of an inner step, in the last rounds
  std::optional<Round> round_{};
  Instant looked_at_{};
  bool is_pardoned_ = false;
};

}  // namespace weft::broker
