// What a run on many machines says of itself, beside what a run on one machine says (train::Event), and how a
// broker's events become that.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "proto/messages.h"
#include "train/trainer.h"

namespace weft::cli {

struct SubmittedEvent {
  proto::JobNumber job = 0;
};
struct StateEvent {
  proto::JobNumber job = 0;
  std::string state;   // "running"
  std::string reason;  // what it waits for, or why it ended; may be empty
  uint64_t step = 0;
};
struct PlanEvent {
  proto::JobNumber job = 0;
  std::vector<std::string> lines;
  std::vector<std::string> peers{};                 // by stage
  double step_seconds = 0, samples_per_second = 0;  // predicted
  std::vector<plan::Seat> seats{};                  // of the peers, where there are replicas
};
struct NoticeEvent {
  proto::JobNumber job = 0;
  uint64_t step = 0;
  std::string text;
};
struct StatusEvent {
  proto::JobStatus status;
};
// The end of a job, as seen from outside a run: logs, fetch, submit when it gave no trained file.
struct EndEvent {
  proto::JobNumber job = 0;
  std::string state;  // "finished", "stopped", "failed"
  std::string reason;
  uint64_t step = 0;
  double seconds = 0;
  std::filesystem::path output, inference;  // what was written, if anything
  std::map<std::string, double> metrics;
};
using RunEvent =
    std::variant<train::Event, SubmittedEvent, StateEvent, PlanEvent, NoticeEvent, StatusEvent, EndEvent>;

// How a broker's event is shown. Nothing for Result, which says no more than that the end is near.
std::optional<RunEvent> to_run_event(const proto::JobEvent& event);

bool has_ended(proto::JobState state);

}  // namespace weft::cli
