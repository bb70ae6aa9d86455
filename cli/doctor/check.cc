#include "cli/doctor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/printable.h"

namespace weft::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<std::string> names_of(const Checks& checks, CheckState state) {
  std::vector<std::string> names;
  for (const Check& check : checks)
    if (check.state == state && std::find(names.begin(), names.end(), check.name) == names.end())
      names.push_back(check.name);
  return names;
}

}  // namespace

std::string_view to_string(CheckState state) {
  switch (state) {
    case CheckState::Ok:
      return "ok";
    case CheckState::Warning:
      return "warning";
    case CheckState::Stops:
      return "stops";
  }
  return "stops";
}

std::string check_line(const Check& check) {
  return printable(fmt::format("{:8} {:12} {}{}", to_string(check.state), check.name, check.seen,
                               check.advice.empty() ? "" : ". To do: " + check.advice));
}

std::string check_event(const Check& check) {
  return text_of({{"event", "check"},
                  {"check", check.name},
                  {"state", to_string(check.state)},
                  {"text", check.seen},
                  {"advice", check.advice}});
}

std::string result_line(const Checks& checks) {
  const auto stops = names_of(checks, CheckState::Stops), warnings = names_of(checks, CheckState::Warning);
  if (stops.empty() && warnings.empty()) return "nothing is wrong";
  if (stops.empty()) return fmt::format("it works; look at: {}", fmt::join(warnings, ", "));
  return fmt::format("it cannot work: {}{}", fmt::join(stops, ", "),
                     warnings.empty() ? "" : fmt::format("; look at: {}", fmt::join(warnings, ", ")));
}

std::string result_event(const Checks& checks) {
  const auto stops = names_of(checks, CheckState::Stops);
  return text_of({{"event", "result"},
                  {"status", stops.empty() ? "completed" : "failed"},
                  {"stops", stops},
                  {"warnings", names_of(checks, CheckState::Warning)}});
}

bool any_stops(const Checks& checks) {
  return std::any_of(checks.begin(), checks.end(),
                     [](const Check& check) { return check.state == CheckState::Stops; });
}

}  // namespace weft::cli
