#include "cli/json_event.h"

#include <fmt/format.h>

#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "cli/exit_codes.h"
#include "cli/say.h"

namespace weft::cli {

int64_t unix_ms_now() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

namespace {

constexpr int64_t kMsASecond = 1000;

std::tm broken_down(int64_t unix_ms, std::tm* (*convert)(const std::time_t*, std::tm*)) {
  const std::time_t seconds = unix_ms / kMsASecond - (unix_ms % kMsASecond < 0 ? 1 : 0);
  std::tm parts{};
  if (convert(&seconds, &parts) == nullptr) parts = {};  // a year beyond what an int holds
  return parts;
}

}  // namespace

std::string utc_time(int64_t unix_ms) {
  const std::tm t = broken_down(unix_ms, gmtime_r);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", t.tm_year + 1900, t.tm_mon + 1, t.tm_mday,
                     t.tm_hour, t.tm_min, t.tm_sec, (unix_ms % kMsASecond + kMsASecond) % kMsASecond);
}

std::string local_time(int64_t unix_ms) {
  const std::tm t = broken_down(unix_ms, localtime_r);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}", t.tm_year + 1900, t.tm_mon + 1, t.tm_mday,
                     t.tm_hour, t.tm_min, t.tm_sec);
}

std::string stamped(std::string_view line, int64_t unix_ms, proto::JobNumber job) {
  static constexpr std::string_view kBegin = "{\"event\":\"";
  WEFT_CHECK_MSG(line.starts_with(kBegin), "a line of JSON begins with its event");
  const size_t end = line.find('"', kBegin.size()) + 1;
  return fmt::format("{},\"time\":\"{}\"{}{}", line.substr(0, end), utc_time(unix_ms),
                     job != 0 ? fmt::format(",\"job\":{}", job) : "", line.substr(end));
}

void print_event(std::string_view line, proto::JobNumber job) {
  fmt::print("{}\n", stamped(line, unix_ms_now(), job));
}

std::string dump(const nlohmann::ordered_json& object) {
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string error_event(const Error& error, int exit_code) {
  const nlohmann::ordered_json line{{"event", "error"},
                                    {"code", to_string(error.code)},
                                    {"exit_code", exit_code},
                                    {"message", error.message}};
  return dump(line);
}

int end_with(const Result<int>& result, bool says_json) {
  if (result) return *result;
  const Error& error = result.error();
  const int code = exit_code(error.code);
  if (says_json) {
    say(stdout, "{}\n", stamped(error_event(error, code), unix_ms_now()));
    std::fflush(stdout);
  }
  say(stderr, "weft: error: {} ({})\n", error.message, to_string(error.code));
  return code;
}

}  // namespace weft::cli
