#include "peer/machine/pass_tally.h"

#include <utility>
#include <vector>

namespace weft::peer {

namespace {
void append(const std::vector<double>& from, std::vector<double>& to) {
  to.insert(to.end(), from.begin(), from.end());
}
}  // namespace

void PassTally::add_forward(const TaskOutcome& segment) {
  append(segment.loss, evaluation_.loss);
  append(segment.correct, evaluation_.correct);
  append(segment.counted, evaluation_.counted);
}

std::optional<proto::EvaluationReport> PassTally::finish_forward(const proto::Command& command) {
  microbatches_ = 0;
  if (command.kind != proto::CommandKind::Evaluate) return std::nullopt;
  proto::EvaluationReport report = std::exchange(evaluation_, {});
  if (report.loss.empty() && report.correct.empty() && report.counted.empty()) return std::nullopt;
  report.run = run_;
  report.plan_version = plan_version_;
  report.step = command.step;
  report.first_microbatch = command.first_microbatch;
  return report;
}

void PassTally::add_comparison(const TaskOutcome& segment) { append(segment.loss, comparison_.losses); }

bool PassTally::end_pass(const TaskOutcome& squares) {
  double sum = 0;
  for (const double square : squares.squares) sum += square;
  comparison_.squares.push_back(sum);
  return comparison_.squares.size() == proto::kComparisonPasses;
}

proto::ComparisonReport PassTally::finish_comparison(const proto::Command& command) {
  comparison_.run = run_;
  comparison_.plan_version = plan_version_;
  comparison_.step = command.step;
  return std::exchange(comparison_, {});
}

}  // namespace weft::peer
