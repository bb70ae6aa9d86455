// What `weft doctor` says: a line for each thing that it looked at.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::cli {

enum class CheckState : uint8_t {
  Ok,
  Warning,  // weft works, but worse than it could, or may stop one day
  Stops,    // nothing works until this is put right
};
std::string_view to_string(CheckState state);  // "ok", "warning", "stops"

struct Check {
  std::string name;  // one word
  CheckState state = CheckState::Ok;
  std::string seen;
  std::string advice{};  // what to do; empty: nothing
};
using Checks = std::vector<Check>;

// One line each, without an end.
std::string check_line(const Check& check);
std::string check_event(const Check& check);
// What all of them come to. The event has a list of the names of each state but Ok.
std::string result_line(const Checks& checks);
std::string result_event(const Checks& checks);
// Whether something stops work.
bool any_stops(const Checks& checks);

}  // namespace weft::cli
