// With what a run begins, and what it may take.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/units.h"
#include "proto/messages.h"
#include "replicas/mean_check.h"

namespace weft::broker {

// How means on which replicas agree are looked at a second time (mean_checks.h).
struct MeanCheckOptions {
  uint32_t each = 1;                 // pieces of each agreement
  std::function<uint64_t()> draw{};  // that nobody can foresee; none: nothing is looked at
  replicas::HashFunction hash{};     // as peers compute it
  replicas::TakePiece take{};
};

struct RunOptions {
  uint32_t window_steps = 8;  // granted ahead of the last committed step
  // Microbatches of an evaluation or prediction in a command; two commands are under way.
  uint32_t forward_chunk = 8;
  Duration checkpoint_every_default = std::chrono::seconds(60);  // when the job names nothing
  // False: there are no snapshots but checkpoints, and a lost peer takes the run back to the last one.
  bool copies_state = true;
  uint64_t copy_rate = 12'500'000;    // bytes a second of one peer's uplink for snapshots; 0: no limit
  int64_t eager_bytes_max = 8 << 20;  // of the largest stage
  // Commands that are not settled: beyond, nothing is granted until a snapshot that takes long is in.
  size_t script_max = 1 << 16;
  Duration checkpoint_retry = std::chrono::seconds(10);  // of the last one, after it failed
  // For peers to fetch a direct copy, or ten times what one takes; then copies go to the broker.
  Duration direct_deadline = std::chrono::seconds(30);
  // Of a run over compressed links: what comparisons with dense ones may take of its time (0: there are
  // none), the first after so many steps.
  double compare_share = 0.02;
  uint64_t compare_after = 16;
  MeanCheckOptions mean_checks{};
};

// From where a run begins, and what was recorded of its job before.
struct RunBegin {
  uint64_t after_step = 0;                  // the state that its stages were loaded with
  uint64_t checkpointed = 0;                // the step of the newest checkpoint
  uint64_t recorded = 0;                    // Step events are there up to here
  uint64_t evaluated = 0;                   // Evaluation events
  std::map<std::string, double> metrics{};  // of the last evaluation
  uint32_t predicted = 0;                   // microbatches of which all predictions are there
  std::vector<proto::PredictionReport> predictions{};
};

}  // namespace weft::broker
