#include "broker/jobs/run_deadlines.h"

#include <algorithm>
#include <chrono>

namespace weft::broker {

Duration RunDeadlines::transfer(const PlannedRun& plan) const {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
      static_cast<double>(largest_loaded_bytes(plan)) / options_.slowest_bytes_per_second));
}

Duration RunDeadlines::shortest_stall(const Run& run) const {
  return std::max(options_.stall_deadline, 20 * run.plan().predicted_step);
}

// Twice as long after each time that it passed: a plan that takes links for far faster than they are would
// otherwise never see its first step done.
Duration RunDeadlines::stall(const Job& job) const {
  constexpr uint32_t kDoublings = 5;
  const Run& run = *job.running()->run;
  Duration deadline = shortest_stall(run);
  deadline *= int64_t{1} << std::min(job.losses.stalls, kDoublings);
  if (run.waits_for_agreement()) deadline += 2 * transfer(run.plan());  // there and back
  if (run.rounds().under_way().hold_the_run_up()) deadline += transfer(run.plan());
  if (const auto comparing = run.comparing()) deadline += 20 * *comparing;
  return deadline;
}

}  // namespace weft::broker
