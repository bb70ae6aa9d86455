// What commands print with --format json: an object a line, each with its `event` and its `time`.
// docs/EVENTS.md has them all.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "proto/hello.h"

namespace weft::cli {

int64_t unix_ms_now();
// "2026-11-27T03:44:22.123Z": RFC 3339, in UTC.
std::string utc_time(int64_t unix_ms);
// "2026-11-27 04:44:22", where this machine is.
std::string local_time(int64_t unix_ms);

// `line` with the time behind its event's name, and the job where there is one (not 0). REQUIRES: it begins
// as
// {"event":"name", and names no job of its own where one is given.
std::string stamped(std::string_view line, int64_t unix_ms, proto::JobNumber job = 0);
// Writes the line to standard output, stamped with the time that it is.
void print_event(std::string_view line, proto::JobNumber job = 0);

// An object as a line. What is no UTF-8 is replaced: a name may come from anywhere.
std::string dump(const nlohmann::ordered_json& object);

// The last line of a command that failed.
std::string error_event(const Error& error, int exit_code);

}  // namespace weft::cli
