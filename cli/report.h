// Shows a run's events: as JSON lines for programs (SPEC, Output), or as text for people. Text goes to
// standard output, warnings to standard error.
//
// On a terminal the run is one line that is rewritten (cli/live_line.h): step, loss, samples/s, the time
// left, how busy the stages are. In a file or a pipe the same is a line every few seconds. Other lines stay,
// and come only with something new: a state, a notice, an evaluation, and a stage when its peer, the plan's
// version or its busy share has changed (cli/stage_watch.h).
#pragma once

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "cli/json_event.h"
#include "cli/run_events.h"

namespace weft::cli {

class Report {
 public:
  virtual ~Report() = default;
  // `unix_ms`: when it happened, by the clock of who tells it.
  virtual void show_at(const RunEvent& event, int64_t unix_ms) = 0;
  void show(const RunEvent& event) { show_at(event, unix_ms_now()); }
  void about(proto::JobNumber job) { job_ = job; }  // what comes from now on is of this job of a broker
  virtual void make_way() {}                        // something else is about to write to the terminal
  virtual bool is_unread() const = 0;               // what was shown could not be written: the reader is gone

 protected:
  proto::JobNumber job_ = 0;  // 0: of no broker
};

std::unique_ptr<Report> make_json_report(std::FILE* out);

struct TextOptions {
  // Ends with the lines "test accuracy: 0.8934" (or "test loss: ...") and "demo seconds: N".
  bool summary = false;
  bool verbose = false;  // of a plan everything
  bool times = false;    // each line that stays begins with when that happened
  std::function<Instant()> now = [] { return Instant(std::chrono::steady_clock::now().time_since_epoch()); };
};
std::unique_ptr<Report> make_text_report(std::FILE* out, TextOptions options);

// What is shown of a plan's explanation, a line each: the first five that do not begin with a space
// (plan/explain.h), or all when `verbose`.
std::vector<std::string> plan_lines(const std::vector<std::string>& explanation, bool verbose);

// Shortest decimal that reads back as the same double; null for what is not finite (as JSON wants it).
std::string json_number(double value);
std::string json_string(std::string_view text);
std::string json_metrics(const std::map<std::string, double>& metrics);
// A job's state as one JSON line, not yet stamped: {"event":"status","name":...}. Its last loss is not a
// top-level `loss`.
std::string json_status(const proto::JobStatus& status);

}  // namespace weft::cli
