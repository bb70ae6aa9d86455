// Amounts as people write them on a command line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/units.h"

namespace weft::cli {

// "90s", "15m", "24h", "30d": above zero, at most ten years. InvalidArgument.
Result<Duration> parse_duration(std::string_view text);

// What an owner lets a peer send or receive, as "10Mbit", in bytes a second: at least 64 kbit/s, for with
// less a handshake alone takes a second. InvalidArgument, which names the option.
Result<double> parse_rate_cap(std::string_view option, const std::string& text);

// "3m 20s"
std::string format_duration(double seconds);
// "1.2 MiB"
std::string format_bytes(int64_t bytes);
// "40.0 of 128.0 MiB"
std::string format_bytes_of(int64_t part, int64_t whole);
// "2026-11-21 05:30:12 UTC"
std::string format_time(int64_t unix_ms);

}  // namespace weft::cli
