// What has happened to a job, from its events, for a page: the curves, and the last of what was said.
// Bounded, however long the job runs.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "proto/messages.h"
#include "ui/thinned.h"

namespace weft::ui {

inline constexpr size_t kPointsMax = 2048;       // of a curve
inline constexpr size_t kEvaluationsMax = 1024;  // of those of evaluations
inline constexpr size_t kMetricsMax = 16;        // of an evaluation
inline constexpr size_t kLinesMax = 200;         // of what was said
inline constexpr size_t kPlansMax = 16;

struct StepPoint {
  uint64_t step = 0;
  double loss = 0;  // not finite: the step was skipped
  double samples_per_second = 0;
};
struct EvaluationPoint {
  uint64_t step = 0;
  std::map<std::string, double> metrics{};
};
struct HistoryLine {
  int64_t unix_ms = 0;
  uint64_t step = 0;
  std::string kind;  // "state", "notice", "plan", "checkpoint"
  std::string text;  // fit for one line
};
// A plan that the job ran by, as it was made.
struct PastPlan {
  int64_t unix_ms = 0;
  uint64_t after_step = 0;
  double step_seconds = 0, samples_per_second = 0;  // predicted
  std::vector<std::string> peers;                   // by stage
  std::vector<std::string> lines;                   // why it is as it is
};

class JobHistory {
 public:
  // In the order of their numbers; one that came before is left out.
  void add(const proto::JobEvent& event);
  uint64_t next_sequence() const { return next_; }

  const Thinned<StepPoint>& steps() const { return steps_; }
  const Thinned<EvaluationPoint>& evaluations() const { return evaluations_; }
  // Of both curves; see Thinned.
  uint64_t generation() const { return steps_.generation() + evaluations_.generation(); }
  const std::deque<HistoryLine>& lines() const { return lines_; }
  const std::deque<PastPlan>& plans() const { return plans_; }

 private:
  void say(const proto::JobEvent& event, std::string kind, const std::string& text);
  void add_step(const proto::JobEvent& event);
  void add_evaluation(const proto::JobEvent& event);
  void add_plan(const proto::JobEvent& event);

  uint64_t next_ = 1;
  Thinned<StepPoint> steps_{kPointsMax};
  Thinned<EvaluationPoint> evaluations_{kEvaluationsMax};
  std::deque<HistoryLine> lines_;
  std::deque<PastPlan> plans_;
};

}  // namespace weft::ui
