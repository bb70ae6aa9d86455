// A graph that is run again and again to see how long it takes.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "dag/graph.h"
#include "peer/backend/backend.h"
#include "peer/executor.h"

namespace weft::peer {

// Seconds since whenever.
using TrialClock = double (*)();
double wall_clock();

class Trial {
 public:
  // Lowers it for the backend, fills inputs and parameters with ordinary numbers, and runs it once.
  static Result<Trial> create(const dag::Graph& graph, Backend& backend, TrialClock clock = wall_clock);

  // The graph as it runs.
  const dag::Graph& graph() const { return executor_->graph(); }
  // Seconds of one run.
  Result<double> run();
  // Seconds of a run: the median of the fastest quarter of those of a while, because rates are those of a
  // device that does nothing else, and this machine may be busy right now.
  Result<double> measure(Duration time);
  // The same of an update of the graph's parameters.
  Result<double> measure_update(Duration time);

 private:
  Trial(Backend& backend, TrialClock clock) : backend_(&backend), clock_(clock) {}
  Status fill();
  template <typename Work>
  Result<double> time_of(Work work);
  template <typename Once>
  Result<double> typical(Duration time, Once once);

  Backend* backend_;
  TrialClock clock_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<MicrobatchMemory> microbatch_;
};

// Whether all its values fit into that memory.
bool is_within(const dag::Graph& graph, const Backend& backend, Bytes memory);

}  // namespace weft::peer
