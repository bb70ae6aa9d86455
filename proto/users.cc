#include "proto/users.h"

namespace weft::proto {

std::string_view to_string(JobState state) {
  switch (state) {
    case JobState::Queued:
      return "queued";
    case JobState::Waiting:
      return "waiting";
    case JobState::Planning:
      return "planning";
    case JobState::Loading:
      return "loading";
    case JobState::Running:
      return "running";
    case JobState::Stopping:
      return "stopping";
    case JobState::Finished:
      return "finished";
    case JobState::Stopped:
      return "stopped";
    case JobState::Failed:
      return "failed";
  }
  return "unknown";
}

std::string_view to_string(Reach reach) {
  switch (reach) {
    case Reach::Relay:
      return "relay";
    case Reach::Untried:
      return "untried";
    case Reach::Direct:
      return "direct";
    case Reach::Closed:
      return "closed";
  }
  return "unknown";
}

}  // namespace weft::proto
