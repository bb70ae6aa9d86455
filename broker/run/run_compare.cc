#include "broker/run/run_compare.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.h"
#include "broker/run/stalls.h"

namespace weft::broker {

using proto::ComparisonPass;

namespace {
constexpr size_t kPasses = proto::kComparisonPasses;
constexpr size_t index_of(ComparisonPass pass) { return static_cast<size_t>(pass); }
}  // namespace

Comparison::Comparison(const PlannedRun& plan, const RunBegin& begin, const RunOptions& options)
    : stages_(plan.stages.size()),
      microbatches_(plan.microbatches),
      codec_ratio_(codec_ratio(plan)),
      share_(plan.local_steps || !plan.exact_ranges.empty() ? 0 : options.compare_share),
      first_(begin.after_step + options.compare_after) {}

void Comparison::resume(const proto::Command& command) {
  if (command.kind != proto::CommandKind::Compare) return;
  under_way_ =
      UnderWay{.sequence = command.sequence, .step = command.step, .in = std::vector<bool>(stages_, false)};
}

void Comparison::continue_at(Instant now) {
  compared_at_ = now;
  if (under_way_) under_way_->began = now;
}

// Until one was measured: a microbatch passes the stages one after the other, of which a step has so many in
// a row, once dense and twice compressed.
double Comparison::cost(double step_seconds) const {
  if (seconds_ > 0) return seconds_;
  const auto stages = static_cast<double>(stages_);
  return step_seconds * (codec_ratio_ + 2) * stages / (stages + microbatches_ - 1);
}

std::optional<Duration> Comparison::takes(double step_seconds) const {
  if (!under_way_) return std::nullopt;
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(cost(step_seconds)));
}

bool Comparison::is_due(Instant now, uint64_t committed, double step_seconds) const {
  if (codec_ratio_ <= 1 || share_ <= 0 || microbatches_ < 2) return false;
  if (under_way_ || committed < first_) return false;
  return seconds(now - compared_at_) * share_ >= cost(step_seconds);
}

proto::Command Comparison::write(Instant now, uint64_t sequence, uint64_t step) {
  under_way_ =
      UnderWay{.sequence = sequence, .step = step, .began = now, .in = std::vector<bool>(stages_, false)};
  return {.kind = proto::CommandKind::Compare, .step = step};
}

void Comparison::on_step_done(Instant now, uint64_t step) {
  if (under_way_ && under_way_->step == step) under_way_->began = now;
}

bool Comparison::awaits(uint32_t stage, uint64_t step) const {
  return under_way_ && under_way_->step == step && !under_way_->in[stage];
}

Status Comparison::check_passes(const proto::ComparisonReport& report) {
  if (report.squares.size() == kPasses && report.losses.size() % kPasses == 0) return {};
  return fail(ErrorCode::InvalidArgument, "a comparison has not a number for each pass");
}

Comparison::Heard Comparison::on_report(Instant now, uint32_t stage, const proto::ComparisonReport& report) {
  WEFT_CHECK(awaits(stage, report.step) && check_passes(report).has_value());
  under_way_->in[stage] = true;
  if (!report.losses.empty()) under_way_->losses = report.losses;
  for (size_t pass = 0; pass < kPasses; ++pass) under_way_->squares[pass] += report.squares[pass];
  if (!all_said(under_way_->in)) return Heard{};
  const UnderWay done = *std::exchange(under_way_, std::nullopt);
  seconds_ = std::max(seconds(now - done.began), 1e-6);
  compared_at_ = now;
  Heard heard{.is_done = true};
  // A step that will be skipped, or ends the run, says nothing of the links.
  const proto::LinkComparison result = result_of(done);
  if (std::isfinite(done.squares[index_of(ComparisonPass::Dense)]) && std::isfinite(result.loss_dense))
    heard.result = last_ = result;
  return heard;
}

proto::LinkComparison Comparison::result_of(const UnderWay& done) {
  const double dense = done.squares[index_of(ComparisonPass::Dense)],
               sum = done.squares[index_of(ComparisonPass::Added)],
               compressed = done.squares[index_of(ComparisonPass::Compressed)],
               product = (sum - dense - compressed) / 2;
  const size_t terms = done.losses.size() / kPasses;
  proto::LinkComparison result{.step = done.step};
  for (size_t term = 0; term < terms; ++term) {
    result.loss_dense += done.losses[index_of(ComparisonPass::Dense) * terms + term];
    result.loss += done.losses[index_of(ComparisonPass::Compressed) * terms + term];
  }
  if (dense > 0) {
    result.gradient_error = std::sqrt(std::max(0.0, dense + compressed - 2 * product) / dense);
    if (compressed > 0) result.gradient_cosine = product / std::sqrt(dense) / std::sqrt(compressed);
  }
  return result;
}

Status Comparison::check(uint64_t granted) const {
  if (under_way_ && (under_way_->step > granted || under_way_->in.size() != stages_))
    return fail(ErrorCode::Internal,
                "comparison: after step " + std::to_string(under_way_->step) + ", which is not granted");
  return {};
}

}  // namespace weft::broker
