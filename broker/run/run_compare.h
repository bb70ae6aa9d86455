// What compressed links do to what is learned: now and then the stages run one microbatch over dense links
// and over the codecs, without update, and report losses and sums of squares of gradients
// (proto::CommandKind::Compare). Of dense d and compressed c the sums are those of d, d + c and c, so that
// d . c follows without that anybody holds both. There is none where replicas make local steps. Pure: time is
// handed in.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "broker/run/planned_run.h"
#include "broker/run/run_options.h"

namespace weft::broker {

class Comparison {
 public:
  Comparison(const PlannedRun& plan, const RunBegin& begin, const RunOptions& options);

  void start(Instant now) { compared_at_ = now; }
  // Instead: a command that a broker before this one wrote and that is not settled; the first stage is back.
  void resume(const proto::Command& command);
  void continue_at(Instant now);

  // Whether the time has come; `step_seconds`: what a step takes. There are steps left to do.
  bool is_due(Instant now, uint64_t committed, double step_seconds) const;
  // The command that compares after `step`.
  proto::Command write(Instant now, uint64_t sequence, uint64_t step);

  bool awaits(uint32_t stage, uint64_t step) const;
  struct Heard {
    bool is_done = false;                           // every stage has reported it
    std::optional<proto::LinkComparison> result{};  // nothing: its numbers say nothing of the links
  };
  // InvalidArgument: the report has not a number for each pass.
  static Status check_passes(const proto::ComparisonReport& report);
  // REQUIRES: awaits(), check_passes().
  Heard on_report(Instant now, uint32_t stage, const proto::ComparisonReport& report);
  // All stages have done that step.
  void on_step_done(Instant now, uint64_t step);

  bool is_under_way() const { return under_way_.has_value(); }
  // The command of the one that is under way.
  std::optional<uint64_t> under_way() const {
    return under_way_ ? std::optional(under_way_->sequence) : std::nullopt;
  }
  bool is_settled(uint64_t sequence) const { return !under_way_ || under_way_->sequence != sequence; }
  double cost(double step_seconds) const;  // seconds
  // The same of the one that is under way.
  std::optional<Duration> takes(double step_seconds) const;
  const proto::LinkComparison& last() const { return last_; }

  // Its invariants. Internal: which one does not hold.
  Status check(uint64_t granted) const;

 private:
  struct UnderWay {
    uint64_t sequence = 0, step = 0;
    Instant began{};         // every stage had done that step
    std::vector<bool> in{};  // by stage
    std::vector<double> losses{};
    std::array<double, proto::kComparisonPasses> squares{};
  };
  static proto::LinkComparison result_of(const UnderWay& done);

  size_t stages_;
  uint32_t microbatches_;
  double codec_ratio_;
  double share_;    // of the run's time
  uint64_t first_;  // not before this step
  std::optional<UnderWay> under_way_{};
  double seconds_ = 0;     // that the last one took; 0: not yet
  Instant compared_at_{};  // or begun
  proto::LinkComparison last_{};
};

}  // namespace weft::broker
