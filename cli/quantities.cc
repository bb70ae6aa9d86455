#include "cli/quantities.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>

#include "configs/cluster.h"

namespace weft::cli {
namespace {

struct Amount {
  double value = 0;
  std::string_view unit;
};
bool parse_amount(std::string_view text, Amount& amount) {
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), amount.value, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(amount.value) || amount.value <= 0) return false;
  amount.unit = std::string_view(end, static_cast<size_t>(text.data() + text.size() - end));
  return true;
}

struct ByteUnit {
  const char* name = "B";
  double size = 1;
  std::string text(int64_t bytes) const {
    return size == 1 ? fmt::format("{}", bytes) : fmt::format("{:.1f}", static_cast<double>(bytes) / size);
  }
};
ByteUnit unit_for(int64_t bytes) {
  ByteUnit unit;
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB"})
    if (static_cast<double>(bytes) >= 1024 * unit.size) unit = {larger, 1024 * unit.size};
  return unit;
}

}  // namespace

Result<Duration> parse_duration(std::string_view text) {
  struct Unit {
    std::string_view name;
    double seconds;
  };
  static constexpr Unit kUnits[] = {{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
  Amount amount;
  if (parse_amount(text, amount))
    for (const Unit& unit : kUnits)
      if (amount.unit == unit.name && amount.value * unit.seconds <= 3650.0 * 86400.0 &&
          amount.value * unit.seconds >= 1e-3)
        return Duration(std::llround(amount.value * unit.seconds * 1e9));
  return fail(
      ErrorCode::InvalidArgument,
      "'" + std::string(text) + "' is no time: say a number with s, m, h or d, as 90s or 24h, at most 3650d");
}

Result<double> parse_rate_cap(std::string_view option, const std::string& text) {
  constexpr double kLeast = 64e3 / 8;
  const auto rate = configs::parse_bandwidth(text);
  if (!rate)
    return fail(ErrorCode::InvalidArgument, std::string(option) + ": '" + text +
                                                "' is no rate: say as 10Mbit or 1Gbit; without the option "
                                                "there is no limit");
  if (*rate < kLeast)
    return fail(ErrorCode::InvalidArgument,
                std::string(option) + ": " + text + " is too slow to take part: say at least 64kbit");
  return *rate;
}

std::string format_duration(double seconds) {
  const auto total = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (total < 60) return fmt::format("{}s", total);
  if (total < 3600) return fmt::format("{}m {:02}s", total / 60, total % 60);
  return fmt::format("{}h {:02}m", total / 3600, total / 60 % 60);
}

std::string format_bytes(int64_t bytes) {
  const ByteUnit unit = unit_for(bytes);
  return fmt::format("{} {}", unit.text(bytes), unit.name);
}

std::string format_bytes_of(int64_t part, int64_t whole) {
  const ByteUnit unit = unit_for(whole);
  return fmt::format("{} of {} {}", unit.text(part), unit.text(whole), unit.name);
}

std::string format_time(int64_t unix_ms) {
  const std::time_t time = unix_ms / 1000;
  std::tm parts{};
  char buffer[32];
  if (gmtime_r(&time, &parts) == nullptr ||
      std::strftime(buffer, sizeof buffer, "%Y-%m-%d %H:%M:%S UTC", &parts) == 0)
    return "?";
  return buffer;
}

}  // namespace weft::cli
