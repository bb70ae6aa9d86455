// What compressed links do to what is learned: now and then the stages run one microbatch over dense links
// and over the codecs, without update, and report losses and sums of squares of gradients
// (proto::CommandKind:: Compare). Of dense d and compressed c the sums are those of d, d + c and c, so that d
// . c follows without that anybody holds both.
#include <algorithm>
#include <cmath>

#include "broker/run.h"

namespace weft::broker {

using proto::CommandKind;

double codec_ratio(const PlannedRun& plan) {
  double dense = 0, wire = 0;
  for (const PlannedStage& stage : plan.stages)
    for (const proto::StageProgram& program : stage.assignment->programs) {
      if (program.kind != proto::ProgramKind::Train) continue;
      for (const proto::EdgeEnd& end : program.sends) {
        if (end.codec.kind == compress::Kind::Dense) continue;
        const dag::TensorSpec& spec = program.graph->spec(end.value);
        dense += static_cast<double>(spec.bytes().value);
        wire += static_cast<double>(proto::payload_bytes(spec, end.codec).value);
      }
    }
  return wire > 0 ? dense / wire : 0;
}

// Until one was measured: a microbatch passes the stages one after the other, of which a step has so many in
// a row, once dense and twice compressed.
double Run::comparison_cost() const {
  if (comparison_seconds_ > 0) return comparison_seconds_;
  const auto stages = static_cast<double>(stages_.size());
  return step_time() * (codec_ratio_ + 2) * stages / (stages + plan_->microbatches - 1);
}

std::optional<Duration> Run::comparing() const {
  if (!comparison_) return std::nullopt;
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(comparison_cost()));
}

void Run::write_comparison_if_due(Instant now, RunSink& sink) {
  if (codec_ratio_ <= 1 || options_.compare_share <= 0 || plan_->microbatches < 2) return;
  if (comparison_ || granted_ == plan_->training.steps || committed_ < begun_after_ + options_.compare_after)
    return;
  if (seconds(now - compared_at_) * options_.compare_share < comparison_cost()) return;
  comparison_ = Comparison{.sequence = sequence_ + 1,
                           .step = granted_,
                           .began = now,
                           .in = std::vector<bool>(stages_.size(), false),
                           .losses = {},
                           .squares = {}};
  write({.kind = CommandKind::Compare, .step = granted_}, sink);
}

Status Run::on_comparison_report(Instant now, uint32_t stage, const proto::ComparisonReport& report,
                                 RunSink& sink) {
  const auto wrong = [](const std::string& what) {
    return fail(ErrorCode::InvalidArgument, "a comparison " + what);
  };
  if (!comparison_ || report.step != comparison_->step || comparison_->in[stage]) {
    if (may_repeat(stage, report.step)) return {};
    return wrong("that was not asked for");
  }
  constexpr size_t kPasses = proto::kComparisonPasses;
  if (report.squares.size() != kPasses || (!report.losses.empty() && report.losses.size() % kPasses != 0))
    return wrong("has not a number for each pass");
  WEFT_TRY_STATUS(claims_[stage].check(report));
  comparison_->in[stage] = true;
  if (!report.losses.empty()) comparison_->losses = report.losses;
  for (size_t pass = 0; pass < kPasses; ++pass) comparison_->squares[pass] += report.squares[pass];
  last_progress_ = now;
  if (std::all_of(comparison_->in.begin(), comparison_->in.end(), [](bool in) { return in; }))
    finish_comparison(now, sink);
  continue_run(now, sink);
  return {};
}

void Run::finish_comparison(Instant now, RunSink& sink) {
  const Comparison done = *std::exchange(comparison_, std::nullopt);
  comparison_seconds_ = std::max(seconds(now - done.began), 1e-6);
  compared_at_ = last_updated_ = now;  // the next step begins from here
  const auto of = [&](proto::ComparisonPass pass) { return static_cast<size_t>(pass); };
  const double dense = done.squares[of(proto::ComparisonPass::Dense)],
               sum = done.squares[of(proto::ComparisonPass::Added)],
               compressed = done.squares[of(proto::ComparisonPass::Compressed)],
               product = (sum - dense - compressed) / 2;
  const size_t terms = done.losses.size() / proto::kComparisonPasses;
  proto::LinkComparison result{.step = done.step};
  for (size_t term = 0; term < terms; ++term) {
    result.loss_dense += done.losses[of(proto::ComparisonPass::Dense) * terms + term];
    result.loss += done.losses[of(proto::ComparisonPass::Compressed) * terms + term];
  }
  if (dense > 0) {
    result.gradient_error = std::sqrt(std::max(0.0, dense + compressed - 2 * product) / dense);
    if (compressed > 0) result.gradient_cosine = product / std::sqrt(dense) / std::sqrt(compressed);
  }
  // A step that will be skipped, or ends the run, says nothing of the links.
  if (!std::isfinite(dense) || !std::isfinite(result.loss_dense)) return;
  compared_ = result;
  sink.compared(result);
}

}  // namespace weft::broker
