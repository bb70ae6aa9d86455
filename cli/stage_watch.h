// What of a job's stages is worth telling while it runs. Shares and times are averaged over some states, for
// those of a single step swing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/messages.h"

namespace weft::cli {

// What each stage and its links do, a line a stage: "stage 1  oregon-1 (oregon)  93% busy  to stage 2: 1.2
// MiB a step, waited 12 ms for it".
std::vector<std::string> stage_lines(const proto::JobStatus& status);

// "saving checkpoint after step 500: 40.0 of 128.0 MiB"; empty: nothing is being saved.
std::string saving_line(const proto::JobStatus& status);

class StageWatch {
 public:
  // The lines of the stages of which something changed since their line was last given: the plan's version,
  // the stage's peer, or its busy share by kBusyChange. A stage that has done no step under its plan yet has
  // nothing to say.
  std::vector<std::string> changes(const proto::JobStatus& status);
  // "busy 62 58 71 40%", by stage; of many stages the least and the most: "busy 12 to 93%". Empty before the
  // first step.
  std::string brief() const;

 private:
  static constexpr double kBusyChange = 0.25;  // of a step's time
  static constexpr double kNewWeight = 0.3;    // of the newest state in the averages
  static constexpr size_t kBriefStages = 8;

  struct Watched {
    proto::StageStatus average{};
    bool known = false, shown = false;
    double busy_shown = 0;
  };
  void average(const proto::StageStatus& now, Watched& stage) const;

  proto::PlanVersion plan_version_ = 0;
  std::vector<Watched> stages_;
};

}  // namespace weft::cli
