#include "cli/report.h"

#include <fmt/format.h>
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

namespace {

std::string json_metrics(const std::map<std::string, double>& metrics) {
  std::string text = "{";
  for (const auto& [name, value] : metrics)
    text += (text.size() > 1 ? "," : "") + json_string(name) + ":" + json_number(value);
  return text + "}";
}

struct JsonLine {
  std::string operator()(const train::StartEvent& e) const {
    std::string warnings = "[";
    for (const auto& warning : e.warnings)
      warnings += (warnings.size() > 1 ? "," : "") + json_string(warning);
    return fmt::format(
        R"({{"event":"start","first_step":{},"steps":{},"samples":{},"batch_size":{},"parameters":{},"parameter_elements":{},"frozen":{},"persistent_bytes":{},"microbatch_bytes":{},"fingerprint":{},"warnings":{}}})",
        e.first_step, e.steps, e.sample_count, e.batch_size, e.parameter_tensors, e.parameter_elements,
        e.frozen_tensors, e.persistent.value, e.microbatch.value, json_string(e.fingerprint), warnings + "]");
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
                       json_string(e.path.string()));
  }
  std::string operator()(const train::ResultEvent& e) const {
    return fmt::format(
        R"({{"event":"result","status":"{}","steps":{},"seconds":{},"output":{},"inference":{},"checkpoint":{},"metrics":{}}})",
        e.stopped ? "stopped" : "completed", e.steps, json_number(e.seconds),
        e.output.empty() ? "null" : json_string(e.output.string()),
        e.inference.empty() ? "null" : json_string(e.inference.string()),
        e.checkpoint.empty() ? "null" : json_string(e.checkpoint.string()), json_metrics(e.metrics));
  }
};

class JsonReport : public Report {
 public:
  explicit JsonReport(std::FILE* out) : out_(out) {}
  void show(const train::Event& event) override {
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

  void show(const train::Event& event) override {
    std::visit([this](const auto& e) { on(e); }, event);
    std::fflush(out_);
  }

 private:
  void line(const std::string& text) {
    if (unfinished_) std::fprintf(out_, "\n");
    unfinished_ = false;
    std::fprintf(out_, "%s\n", text.c_str());
  }

  void on(const train::StartEvent& e) {
    start_ = e;
    for (const auto& warning : e.warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
    line(
        fmt::format("training {} parameters in {} tensors{} on {} samples, steps {} to {} of {} samples each",
                    e.parameter_elements, e.parameter_tensors,
                    e.frozen_tensors ? fmt::format(" ({} frozen)", e.frozen_tensors) : "", e.sample_count,
                    e.first_step, e.steps, e.batch_size));
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
    std::fprintf(out_, "\r\033[K%s", text.c_str());
    unfinished_ = true;
    if (last) line("");
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
      line(fmt::format("checkpoint after step {}: {}", e.after_step, e.path.string()));
  }
  void on(const train::ResultEvent& e) {
    if (e.stopped) {
      line(fmt::format("stopped after step {} of {}", e.steps, start_.steps));
      if (!e.checkpoint.empty())
        line(fmt::format("to go on: the same command with --resume {}", e.checkpoint.string()));
      return;
    }
    line(fmt::format("wrote {} and {}", e.output.string(), e.inference.string()));
    const auto metric = [&](const char* name) { return e.metrics.find(name); };
    if (const auto loss = metric("loss"); loss != e.metrics.end())
      line(fmt::format("test loss: {:.4f}", loss->second));
    if (const auto accuracy = metric("accuracy"); accuracy != e.metrics.end())
      line(fmt::format("test accuracy: {:.4f}", accuracy->second));
    line(fmt::format("{} seconds: {:.0f}", summary_ ? "demo" : "training", e.seconds));
  }

  std::FILE* out_;
  bool summary_, terminal_, unfinished_ = false;
  train::StartEvent start_;
  double elapsed_ = 0, shown_ = 0, loss_ = 0, rate_ = 0;
  uint64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<Report> make_json_report(std::FILE* out) { return std::make_unique<JsonReport>(out); }
std::unique_ptr<Report> make_text_report(std::FILE* out, bool summary) {
  return std::make_unique<TextReport>(out, summary);
}

}  // namespace weft::cli
