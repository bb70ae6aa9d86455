// A run's events for people.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "cli/live_line.h"
#include "cli/progress.h"
#include "cli/quantities.h"
#include "cli/report.h"
#include "cli/stage_watch.h"

namespace weft::cli {
namespace {

constexpr size_t kPlanLines = 5;
constexpr double kFileSeconds = 5;  // of the run, from one line of steps to the next
constexpr Duration kLiveInterval = std::chrono::milliseconds(100);
constexpr Duration kQuiet = std::chrono::seconds(2);         // before it is said what is waited for
constexpr Duration kFileInterval = std::chrono::seconds(5);  // from one line of what is saved to the next

// How fast steps come, over the last seconds: those of several machines come in bunches.
class Pace {
 public:
  void add(const train::StepEvent& step) {
    const double kept = std::exp(-step.seconds / kMemorySeconds);
    steps_ = steps_ * kept + 1;
    const double samples = step.samples_per_second * step.seconds;
    samples_ = samples_ * kept + (std::isfinite(samples) ? samples : 0);
    seconds_ = seconds_ * kept + step.seconds;
  }
  double samples_per_second() const { return seconds_ > 0 ? samples_ / seconds_ : 0; }
  double step_seconds() const { return steps_ > 0 ? seconds_ / steps_ : 0; }

 private:
  static constexpr double kMemorySeconds = 15;
  double steps_ = 0, samples_ = 0, seconds_ = 0;
};

class TextReport : public Report {
 public:
  TextReport(std::FILE* out, TextOptions options) : live_(out), options_(std::move(options)) {}

  void show_at(const RunEvent& event, int64_t unix_ms) override {
    unix_ms_ = unix_ms;
    if (!std::holds_alternative<StatusEvent>(event)) {
      patience_.reset();
      quiet_since_ = options_.now();
    }
    std::visit([this](const auto& e) { on(e); }, event);
    // Behind the last step comes what may take long and says nothing.
    if (is_behind() && !patience_ && !saving_.is_shown)
      patience_.emplace("the last step is done; evaluating and saving what was learnt");
  }
  void make_way() override { end_live(); }
  bool is_unread() const override { return live_.is_unread(); }

 private:
  std::string stamped_line(const std::string& text) const {
    return options_.times ? local_time(unix_ms_) + "  " + text : text;
  }
  void line(const std::string& text) { live_.write_line(stamped_line(text)); }

  bool is_behind() const { return steps_ > 0 && step_.step >= steps_ && !is_over_; }

  void on(const train::Event& event) {
    std::visit([this](const auto& e) { on(e); }, event);
  }
  void on(const train::StartEvent& e) {
    steps_ = e.steps;
    for (const auto& note : e.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
    for (const auto& warning : e.warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
    if (e.first_step > e.steps)
      return line(
          fmt::format("nothing is left to train: the checkpoint is after step {}, the last", e.steps));
    line(
        fmt::format("training {} parameters in {} tensors{} on {} samples, steps {} to {} of {} samples each",
                    e.parameter_elements, e.parameter_tensors,
                    e.frozen_tensors ? fmt::format(" ({} frozen)", e.frozen_tensors) : "", e.sample_count,
                    e.first_step, e.steps, e.batch_size));
    if (e.fingerprint.empty()) return;
    line(fmt::format("memory: {} for weights, gradients and optimizer, {} for a microbatch; {}",
                     format_bytes(e.persistent.value), format_bytes(e.microbatch.value), e.fingerprint));
  }

  void on(const train::StepEvent& e) {
    const bool first = step_.step == 0;
    step_ = e;
    elapsed_ += e.seconds;
    if (!e.skipped) loss_ = e.loss;
    pace_.add(e);
    if (e.skipped) line(fmt::format("step {} skipped: it was not finite, nothing was updated", e.step));
    const bool last = e.step == steps_;
    saving_.is_shown = false;
    open_ = live_.is_live();
    if (open_) return last ? end_live() : draw_now_and_then();
    if (!first && !last && elapsed_ - shown_ < kFileSeconds) return;
    shown_ = elapsed_;
    line(fmt::format("{}", fmt::join(step_parts(), "  ")));
  }

  // The most important first: what a terminal has no room for is left out.
  std::vector<std::string> step_parts() const {
    const double left = static_cast<double>(std::max(steps_, step_.step) - step_.step) * pace_.step_seconds();
    const bool is_known = steps_ > 0, is_last = is_known && step_.step >= steps_;
    std::vector<std::string> parts;
    const std::string saving = live_.is_live() && !is_last ? saving_.text : "";
    if (!saving.empty() && saving_.is_waited_for)
      parts.push_back(saving);
    else if (is_known && !is_last)
      parts.push_back(fmt::format("{} left", format_duration(left)));
    parts.push_back(is_known
                        ? fmt::format("step {:>{}}/{}", step_.step, fmt::formatted_size("{}", steps_), steps_)
                        : fmt::format("step {}", step_.step));
    parts.push_back(fmt::format("loss {:.4f}", loss_));
    parts.push_back(fmt::format("{:.0f} samples/s", pace_.samples_per_second()));
    if (live_.is_live() && !replicas_.empty()) parts.push_back(replicas_);
    if (const std::string busy = watch_.brief(); !busy.empty()) parts.push_back(busy);
    if (!saving.empty() && !saving_.is_waited_for)
      parts.push_back(saving);
    else if (live_.is_live() && checkpoint_ > 0)
      parts.push_back(fmt::format("checkpoint {}", checkpoint_));
    parts.push_back(fmt::format("norm {:.3f}", step_.gradient_norm));
    parts.push_back(fmt::format("learning rate {:.2e}", step_.learning_rate));
    return parts;
  }
  void draw_now_and_then() {
    const Instant now = options_.now();
    if (drawn_ && now - *drawn_ < kLiveInterval) return;
    drawn_ = now;
    live_.rewrite(step_parts());
  }
  void end_live() {
    if (std::exchange(saving_.is_shown, false)) live_.end();
    if (!std::exchange(open_, false)) return;
    live_.rewrite(step_parts());
    live_.end();
    drawn_.reset();
  }

  void on(const train::EvaluationEvent& e) {
    std::string text = fmt::format("evaluation after step {} on {} samples{}:", e.after_step, e.samples,
                                   e.codecs.empty() ? "" : ", links compressed (" + e.codecs + ")");
    // In a summary only the closing lines speak of accuracy.
    for (const auto& [name, value] : e.metrics)
      text += fmt::format("  {} {:.4f}", options_.summary && name == "accuracy" ? "hits" : name, value);
    line(text);
  }
  // The last one is a line, and one that was waited for; those before are what the live line says.
  void on(const train::CheckpointEvent& e) {
    checkpoint_ = e.after_step;
    saving_.text.clear();
    const bool was_waited_for = std::exchange(saving_.is_shown, false);
    if (e.after_step != steps_ && !was_waited_for) return;
    const std::string text = e.path.empty()
                                 ? fmt::format("checkpoint after step {}", e.after_step)
                                 : fmt::format("checkpoint after step {}: {}", e.after_step, e.path.string());
    if (!was_waited_for || !live_.is_live()) return line(text);
    live_.rewrite({stamped_line(text)});
    live_.end();
  }

  // How far a checkpoint is that is waited for: on a terminal a line that is rewritten, in a file one now and
  // then. While steps come their line says it.
  void show_saving(const proto::JobStatus& status) {
    const bool is_last = steps_ > 0 && status.saving.step >= steps_;
    saving_.text = saving_line(status);
    saving_.is_waited_for = is_last || is_behind() || status.state == proto::JobState::Stopping;
    if (open_) return live_.rewrite(step_parts());
    if (saving_.text.empty() || !saving_.is_waited_for) return;
    patience_.reset();
    const Instant now = options_.now();
    if (now - quiet_since_ < kQuiet) return;
    const bool is_first = !std::exchange(saving_.is_shown, true);
    if (live_.is_live()) return live_.rewrite({saving_.text});
    if (saving_.text == saving_.line || (!is_first && now - saving_.line_at < kFileInterval)) return;
    saving_.line = saving_.text;
    saving_.line_at = now;
    line(saving_.text);
  }
  void on(const train::AgreementEvent&) {}  // there may be many; what it cost is in the JSON
  void on(const train::WarningEvent& e) {
    end_live();
    std::fprintf(stderr, "warning: %s\n", e.text.c_str());
  }
  void on(const train::ResultEvent& e) {
    is_over_ = true;
    end_live();
    if (e.failed || !e.diverged.empty())
      return line(fmt::format("failed after step {} of {}", e.steps, steps_));
    if (e.stopped) {
      line(fmt::format("stopped after step {} of {}", e.steps, steps_));
      if (!e.checkpoint.empty())
        line(fmt::format("to go on: the same command with --resume {}", e.checkpoint.string()));
      return;
    }
    line(fmt::format("wrote {} and {}", e.output.string(), e.inference.string()));
    if (!e.adapter.empty()) line(fmt::format("wrote {} (adapters, as PEFT reads them)", e.adapter.string()));
    if (e.merge) line("outputs of the merged model: " + train::describe(*e.merge));
    show_metrics(e.metrics);
    line(fmt::format("{} seconds: {:.0f}", options_.summary ? "demo" : "training", e.seconds));
  }
  void show_metrics(const std::map<std::string, double>& metrics) {
    for (const char* name : {"loss", "accuracy", "perplexity"})
      if (const auto metric = metrics.find(name); metric != metrics.end())
        line(fmt::format("test {}: {:.4f}", name, metric->second));
  }

  void on(const SubmittedEvent& e) { line(fmt::format("job {}", e.job)); }
  void on(const StateEvent& e) {
    if (e.state != "running") end_live();
    is_over_ = e.state == "finished" || e.state == "failed" || e.state == "stopped";
    line(fmt::format("job {}: {}{}", e.job, e.state, e.reason.empty() ? "" : ": " + e.reason));
  }
  void on(const PlanEvent& e) {
    for (const std::string& text : plan_lines(e.lines, options_.verbose)) line(text);
  }
  void on(const NoticeEvent& e) { line("notice: " + e.text); }
  void on(const StatusEvent& e) {
    if (steps_ == 0) steps_ = e.status.steps;
    replicas_ = brief_of_replicas(e.status);
    for (const std::string& text : watch_.changes(e.status)) line(text);
    show_saving(e.status);
  }
  void on(const EndEvent& e) {
    is_over_ = true;
    end_live();
    if (!e.output.empty())
      line(fmt::format("wrote {}{}", e.output.string(),
                       e.inference.empty() ? "" : " and " + e.inference.string()));
    if (e.state != "finished")
      line(fmt::format("job {} {}{}{}", e.job, e.state,
                       e.step == 0 ? "" : fmt::format(" after step {}", e.step),
                       e.reason.empty() ? "" : ": " + e.reason));
    show_metrics(e.metrics);
  }

  // "3 replicas, agreed 12s ago".
  static std::string brief_of_replicas(const proto::JobStatus& job) {
    const size_t count = job.replicas.steps.size();
    if (count == 0) return {};
    const std::string agreed =
        job.replicas.agreed_step > 0
            ? fmt::format(", agreed {} ago", format_duration(job.replicas.seconds_since_agreement))
            : "";
    return fmt::format("{} {}{}", count, count == 1 ? "replica" : "replicas", agreed);
  }

  LiveLine live_;
  TextOptions options_;
  std::string replicas_{};  // as the last status had them
  int64_t unix_ms_ = 0;     // of what is being shown
  bool is_over_ = false;    // the result, or the end, was shown
  std::optional<Patience> patience_;
  Instant quiet_since_{};  // the last event that was no state
  struct Saving {
    std::string text{};          // of the last state; empty: nothing is being saved
    bool is_waited_for = false;  // by the job, which has nothing else to do
    bool is_shown = false;       // as a line of its own
    std::string line{};          // in a file: the last one
    Instant line_at{};
  } saving_{};
  bool open_ = false;             // there is a live line
  std::optional<Instant> drawn_;  // when last
  StageWatch watch_;
  Pace pace_;
  train::StepEvent step_{};  // the last
  uint64_t steps_ = 0, checkpoint_ = 0;
  double elapsed_ = 0, shown_ = 0, loss_ = 0;
};

}  // namespace

std::unique_ptr<Report> make_text_report(std::FILE* out, TextOptions options) {
  return std::make_unique<TextReport>(out, std::move(options));
}

std::vector<std::string> plan_lines(const std::vector<std::string>& explanation, bool verbose) {
  std::vector<std::string> lines;
  for (const std::string& text : explanation)
    if (verbose || (text.rfind(' ', 0) != 0 && lines.size() < kPlanLines)) lines.push_back("plan: " + text);
  return lines;
}

}  // namespace weft::cli
