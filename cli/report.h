// Shows a run's events: as JSON lines for programs (SPEC, Output), or as text for people, where a terminal
// gets one line that is rewritten and a file gets a line every few seconds. Text goes to standard output,
// warnings to standard error.
#pragma once

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "train/trainer.h"

namespace weft::cli {

class Report {
 public:
  virtual ~Report() = default;
  virtual void show(const train::Event& event) = 0;
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

}  // namespace weft::cli
