#include "cli/report.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace weft::cli {

std::string format_duration(double seconds) {
  const auto total = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (total < 60) return fmt::format("{}s", total);
  if (total < 3600) return fmt::format("{}m {:02}s", total / 60, total % 60);
  return fmt::format("{}h {:02}m", total / 3600, total / 60 % 60);
}

std::string format_bytes(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

std::string json_number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }
std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_metrics(const std::map<std::string, double>& metrics) {
  std::string text = "{";
  for (const auto& [name, value] : metrics)
    text += (text.size() > 1 ? "," : "") + json_string(name) + ":" + json_number(value);
  return text + "}";
}

namespace {

template <typename Range, typename Format>
std::string json_list(const Range& range, const Format& format) {
  std::string text = "[";
  for (const auto& item : range) text += (text.size() > 1 ? "," : "") + format(item);
  return text + "]";
}

std::string json_stage(const proto::StageStatus& stage) {
  return fmt::format(R"({{"stage":{},"peer":{},"name":{},"region":{},"busy":{},"step":{},"links":{}}})",
                     stage.stage, json_string(to_hex(stage.peer.digest)), json_string(stage.peer_name),
                     json_string(stage.region), json_number(stage.busy), stage.step,
                     json_list(stage.links, [](const proto::LinkUse& link) {
                       return fmt::format(R"({{"to_stage":{},"bytes_sent":{},"seconds_waiting":{}}})",
                                          link.stage, link.bytes_sent, json_number(link.seconds_waiting));
                     }));
}

}  // namespace

std::string json_status(const proto::JobStatus& s) {
  return fmt::format(
      R"({{"event":"status","job":{},"name":{},"state":{},"reason":{},"step":{},"steps":{},"last_loss":{},"samples_per_second":{},"seconds_left":{},"checkpoint_step":{},"recovery_step":{},"recoveries":{},"equal_bits":{},"plan_version":{},"plan":{},"stages":{}}})",
      s.job, json_string(s.name), json_string(to_string(s.state)), json_string(s.reason), s.step, s.steps,
      json_number(s.loss), json_number(s.samples_per_second), json_number(s.seconds_left), s.checkpoint_step,
      s.recovery_step, s.recoveries, s.equal_bits, s.plan_version, json_list(s.plan, json_string),
      json_list(s.stages, json_stage));
}

std::vector<std::string> stage_lines(const proto::JobStatus& status) {
  std::vector<std::string> lines;
  for (const proto::StageStatus& stage : status.stages) {
    std::string line = fmt::format("stage {}  {}", stage.stage + 1, stage.peer_name);
    if (!stage.region.empty()) line += fmt::format(" ({})", stage.region);
    line += fmt::format("  {:.0f}% busy", 100 * stage.busy);
    for (const proto::LinkUse& link : stage.links) {
      line += fmt::format("  to stage {}: {} a step", link.stage + 1,
                          format_bytes(static_cast<int64_t>(link.bytes_sent)));
      if (link.seconds_waiting >= 0.0005)
        line += fmt::format(", waited {:.0f} ms for it", 1000 * link.seconds_waiting);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

namespace {

struct JsonLine {
  std::string operator()(const train::Event& e) const { return std::visit(*this, e); }
  std::string operator()(const train::StartEvent& e) const {
    // What only the machines that train know is null.
    const bool known = !e.fingerprint.empty();
    const auto bytes = [&](Bytes size) {
      return known ? fmt::format("{}", size.value) : std::string("null");
    };
    return fmt::format(
        R"({{"event":"start","first_step":{},"steps":{},"samples":{},"batch_size":{},"parameters":{},"parameter_elements":{},"frozen":{},"persistent_bytes":{},"microbatch_bytes":{},"fingerprint":{},"warnings":{}}})",
        e.first_step, e.steps, e.sample_count, e.batch_size, e.parameter_tensors, e.parameter_elements,
        e.frozen_tensors, bytes(e.persistent), bytes(e.microbatch),
        known ? json_string(e.fingerprint) : "null", json_list(e.warnings, json_string));
  }
  std::string operator()(const train::StepEvent& e) const {
    return fmt::format(
        R"({{"event":"step","step":{},"loss":{},"learning_rate":{},"seconds":{},"samples_per_second":{},"gradient_norm":{}}})",
        e.step, json_number(e.loss), json_number(e.learning_rate), json_number(e.seconds),
        json_number(e.samples_per_second), json_number(e.gradient_norm));
  }
  std::string operator()(const train::EvaluationEvent& e) const {
    return fmt::format(R"({{"event":"evaluation","after_step":{},"samples":{},"metrics":{}}})", e.after_step,
                       e.samples, json_metrics(e.metrics));
  }
  std::string operator()(const train::CheckpointEvent& e) const {
    return fmt::format(R"({{"event":"checkpoint","after_step":{},"path":{}}})", e.after_step,
                       e.path.empty() ? "null" : json_string(e.path.string()));
  }
  std::string operator()(const train::ResultEvent& e) const {
    return fmt::format(
        R"({{"event":"result","status":"{}","steps":{},"seconds":{},"output":{},"inference":{},"checkpoint":{},"metrics":{}}})",
        e.stopped ? "stopped" : "completed", e.steps, json_number(e.seconds),
        e.output.empty() ? "null" : json_string(e.output.string()),
        e.inference.empty() ? "null" : json_string(e.inference.string()),
        e.checkpoint.empty() ? "null" : json_string(e.checkpoint.string()), json_metrics(e.metrics));
  }
  std::string operator()(const SubmittedEvent& e) const {
    return fmt::format(R"({{"event":"submitted","job":{}}})", e.job);
  }
  std::string operator()(const StateEvent& e) const {
    return fmt::format(R"({{"event":"state","job":{},"state":{},"reason":{},"step":{}}})", e.job,
                       json_string(e.state), json_string(e.reason), e.step);
  }
  std::string operator()(const PlanEvent& e) const {
    return fmt::format(R"({{"event":"plan","job":{},"lines":{}}})", e.job, json_list(e.lines, json_string));
  }
  std::string operator()(const NoticeEvent& e) const {
    return fmt::format(R"({{"event":"notice","job":{},"step":{},"text":{}}})", e.job, e.step,
                       json_string(e.text));
  }
  std::string operator()(const StatusEvent& e) const { return json_status(e.status); }
  std::string operator()(const EndEvent& e) const {
    return fmt::format(
        R"({{"event":"result","status":{},"job":{},"reason":{},"steps":{},"seconds":{},"output":{},"inference":{},"checkpoint":null,"metrics":{}}})",
        json_string(e.state == "finished" ? "completed" : e.state), e.job, json_string(e.reason), e.step,
        json_number(e.seconds), e.output.empty() ? "null" : json_string(e.output.string()),
        e.inference.empty() ? "null" : json_string(e.inference.string()), json_metrics(e.metrics));
  }
};

class JsonReport : public Report {
 public:
  explicit JsonReport(std::FILE* out) : out_(out) {}
  void show(const RunEvent& event) override {
    const std::string line = std::visit(JsonLine{}, event);
    std::fprintf(out_, "%s\n", line.c_str());
    std::fflush(out_);
  }

 private:
  std::FILE* out_;
};

class TextReport : public Report {
 public:
  TextReport(std::FILE* out, bool summary)
      : out_(out), summary_(summary), terminal_(isatty(fileno(out)) == 1) {}

  ~TextReport() override {
    if (drawn_ > 0) std::fprintf(out_, "\n");
  }

  void show(const RunEvent& event) override {
    std::visit([this](const auto& e) { on(e); }, event);
    std::fflush(out_);
  }

 private:
  // Lines that stay, above those that are rewritten.
  void line(const std::string& text) {
    erase();
    std::fprintf(out_, "%s\n", text.c_str());
    if (live_) draw();
  }
  void erase() {
    if (drawn_ > 1) std::fprintf(out_, "\033[%zuA", drawn_ - 1);
    if (drawn_ > 0) std::fprintf(out_, "\r\033[J");
    drawn_ = 0;
  }
  void draw() {
    erase();
    winsize size{};
    const size_t width =
        ioctl(fileno(out_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 200u;
    const auto put = [&](const std::string& text) {
      std::fprintf(out_, "%s%s", drawn_++ > 0 ? "\n" : "", text.substr(0, width).c_str());
    };
    put(step_line_);
    for (const std::string& text : stages_) put(text);
  }
  void end_live() {
    if (live_) stages_.clear(), draw(), std::fprintf(out_, "\n");
    live_ = false;
    drawn_ = 0;
  }

  void on(const train::Event& event) {
    std::visit([this](const auto& e) { on(e); }, event);
  }
  void on(const train::StartEvent& e) {
    start_ = e;
    for (const auto& warning : e.warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
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
    elapsed_ += e.seconds;
    ++steps_;
    loss_ = steps_ == 1 || !std::isfinite(loss_)
                ? e.loss
                : 0.95 * loss_ + 0.05 * e.loss;  // what a person can read off
    rate_ = rate_ == 0 ? e.samples_per_second : 0.9 * rate_ + 0.1 * e.samples_per_second;
    const bool last = e.step == start_.steps;
    if (!last && steps_ != 1 && elapsed_ - shown_ < (terminal_ ? 0.2 : 5.0)) return;
    shown_ = elapsed_;
    const double left = static_cast<double>(start_.steps - e.step) * elapsed_ / static_cast<double>(steps_);
    const std::string text =
        fmt::format("step {:>{}}/{}  loss {:.4f}  rate {:.2e}  norm {:.3f}  {:.0f} samples/s  {} left",
                    e.step, fmt::formatted_size("{}", start_.steps), start_.steps, loss_, e.learning_rate,
                    e.gradient_norm, rate_, format_duration(left));
    if (!terminal_) return line(text);
    step_line_ = text;
    live_ = true;
    draw();
    if (last) end_live();
  }

  void on(const train::EvaluationEvent& e) {
    std::string text = fmt::format("evaluation after step {} on {} samples:", e.after_step, e.samples);
    // In a summary only the closing lines speak of accuracy.
    for (const auto& [name, value] : e.metrics)
      text += fmt::format("  {} {:.4f}", summary_ && name == "accuracy" ? "hits" : name, value);
    line(text);
  }
  void on(const train::CheckpointEvent& e) {
    if (terminal_ || e.after_step == start_.steps)
      line(e.path.empty() ? fmt::format("checkpoint after step {}", e.after_step)
                          : fmt::format("checkpoint after step {}: {}", e.after_step, e.path.string()));
  }
  void on(const train::ResultEvent& e) {
    end_live();
    if (e.stopped) {
      line(fmt::format("stopped after step {} of {}", e.steps, start_.steps));
      if (!e.checkpoint.empty())
        line(fmt::format("to go on: the same command with --resume {}", e.checkpoint.string()));
      return;
    }
    line(fmt::format("wrote {} and {}", e.output.string(), e.inference.string()));
    show_metrics(e.metrics);
    line(fmt::format("{} seconds: {:.0f}", summary_ ? "demo" : "training", e.seconds));
  }
  void show_metrics(const std::map<std::string, double>& metrics) {
    for (const char* name : {"loss", "accuracy"})
      if (const auto metric = metrics.find(name); metric != metrics.end())
        line(fmt::format("test {}: {:.4f}", name, metric->second));
  }

  void on(const SubmittedEvent& e) { line(fmt::format("job {}", e.job)); }
  void on(const StateEvent& e) {
    if (e.state != "running") end_live();
    line(fmt::format("job {}: {}{}", e.job, e.state, e.reason.empty() ? "" : ": " + e.reason));
  }
  void on(const PlanEvent& e) {
    for (const std::string& text : e.lines) line("plan: " + text);
  }
  void on(const NoticeEvent& e) { line("notice: " + e.text); }
  void on(const StatusEvent& e) {
    if (start_.steps == 0) start_.steps = e.status.steps;
    stages_ = stage_lines(e.status);
    if (terminal_) {
      if (live_) draw();
    } else {
      for (const std::string& text : stages_) line("  " + text);
    }
  }
  void on(const EndEvent& e) {
    end_live();
    if (!e.output.empty())
      line(fmt::format("wrote {}{}", e.output.string(),
                       e.inference.empty() ? "" : " and " + e.inference.string()));
    if (e.state != "finished")
      line(fmt::format("job {} {} after step {}{}", e.job, e.state, e.step,
                       e.reason.empty() ? "" : ": " + e.reason));
    show_metrics(e.metrics);
  }

  std::FILE* out_;
  bool summary_, terminal_;
  train::StartEvent start_;
  // On a terminal: what is rewritten, and how many lines of it are on the screen.
  bool live_ = false;
  size_t drawn_ = 0;
  std::string step_line_;
  std::vector<std::string> stages_;
  double elapsed_ = 0, shown_ = 0, loss_ = 0, rate_ = 0;
  uint64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<Report> make_json_report(std::FILE* out) { return std::make_unique<JsonReport>(out); }
std::unique_ptr<Report> make_text_report(std::FILE* out, bool summary) {
  return std::make_unique<TextReport>(out, summary);
}

}  // namespace weft::cli
