#include "cli/run_events.h"

#include <sstream>

namespace weft::cli {

using proto::JobEventKind;

std::optional<RunEvent> to_run_event(const proto::JobEvent& event) {
  switch (event.kind) {
    case JobEventKind::State:
      return StateEvent{event.job, std::string(to_string(event.state)), event.text, event.step};
    case JobEventKind::Step:
      return train::Event(train::StepEvent{event.step, event.loss, event.learning_rate, event.seconds,
                                           event.samples_per_second, event.gradient_norm, event.skipped});
    case JobEventKind::Evaluation:
      return train::Event(train::EvaluationEvent{event.step, event.samples, event.metrics, event.text});
    case JobEventKind::Checkpoint:
      return train::Event(train::CheckpointEvent{event.step, {}});
    case JobEventKind::Plan: {
      PlanEvent plan{event.job, {}, event.peers, event.seconds, event.samples_per_second, event.seats};
      std::istringstream text(event.text);
      for (std::string line; std::getline(text, line);)
        if (!line.empty()) plan.lines.push_back(line);
      return plan;
    }
    case JobEventKind::Notice:
      return NoticeEvent{event.job, event.step, event.text};
    case JobEventKind::Result:
      return std::nullopt;
  }
  return std::nullopt;
}

bool has_ended(proto::JobState state) { return state >= proto::JobState::Finished; }

}  // namespace weft::cli
