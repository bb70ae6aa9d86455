// Shows a run's events: as JSON lines for programs (SPEC, Output), or as text for people, where a terminal
// gets a few lines that are rewritten and a file gets a line every few seconds. Text goes to standard output,
// warnings to standard error.
#pragma once

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/run_events.h"

namespace weft::cli {

class Report {
 public:
  virtual ~Report() = default;
  virtual void show(const RunEvent& event) = 0;
};

std::unique_ptr<Report> make_json_report(std::FILE* out);
// `summary`: ends with the lines "test accuracy: 0.8934" (or "test loss: ...") and "demo seconds: N".
std::unique_ptr<Report> make_text_report(std::FILE* out, bool summary);

// "3m 20s"
std::string format_duration(double seconds);
std::string format_bytes(int64_t bytes);
// Shortest decimal that reads back as the same double; null for what is not finite (as JSON wants it).
std::string json_number(double value);
std::string json_string(std::string_view text);
std::string json_metrics(const std::map<std::string, double>& metrics);
// A job's state as one JSON line: {"event":"status","job":1,...}. Its last loss is not a top-level `loss`.
std::string json_status(const proto::JobStatus& status);
// What each stage and its links do, a line a stage: "stage 1  oregon-1 (oregon)  93% busy, 1.2 MiB a step to
// stage 2".
std::vector<std::string> stage_lines(const proto::JobStatus& status);

}  // namespace weft::cli
